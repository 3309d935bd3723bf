"""A classifier of made-up images, that goes on with any number of GPUs. Argument: the number of epochs."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lucid_elastic

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
images = torch.randn(2048, 1, 16, 16)
labels = (images.mean(dim=(1, 2, 3)) > 0).long()
loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loss_of = nn.CrossEntropyLoss()
job = lucid_elastic.Job(model, optimizer, loader)
model, loader = job.model, job.loader
for epoch in job.epochs(int(sys.argv[1])):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
    if job.first:
        print("epoch", epoch, "loss", round(loss.item(), 4), flush=True)
