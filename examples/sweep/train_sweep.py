"""One point of a sweep: a learning rate and a width, by the number of the array's task."""

import itertools
import os

import torch
from torch import nn

POINTS = list(itertools.product((0.3, 0.1, 0.03), (8, 32)))
rate, width = POINTS[int(os.environ["SLURM_ARRAY_TASK_ID"])]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.rand(1024, 1, device=device) * 6
y = torch.sin(x)
model = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for _ in range(2000):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
print("rate", rate, "width", width, "loss", round(loss.item(), 4))
