"""A training that takes turns on the GPU with the jobs beside it, where Lucid asks for it. Argument: steps."""

import sys

import torch
from torch import nn

import lucid_turns

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(256, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
turns = lucid_turns.Turns()
for _ in range(int(sys.argv[1])):
    with turns.cpu():
        x = torch.randn(512, 256)
    with turns.gpu():
        loss = model(x.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()  # else the turn ends before the work does
    turns.step()
print("loss", round(loss.item(), 4))
