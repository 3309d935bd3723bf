"""A linear model of noisy points, as a user of AdaptDL writes it. Arguments: EPOCHS STEP_S."""

import sys
import time

import adaptdl.torch as adl
import torch
from torch.utils.data import TensorDataset

epochs, step_s = int(sys.argv[1]), float(sys.argv[2])
adl.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(1)
points = torch.randn(2048, 4)
data = TensorDataset(points, points @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]]) + 0.25 * torch.randn(2048, 1))
loader = adl.AdaptiveDataLoader(data, batch_size=64, shuffle=True, drop_last=True)
loader.autoscale_batch_size(256, local_bsz_bounds=(16, 128))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model = adl.AdaptiveDataParallel(model, optimizer)
for epoch in adl.remaining_epochs_until(epochs):
    batch = 0
    for x, y in loader:
        batch = loader.current_batch_size
        time.sleep(step_s)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    sys.stdout.write(f"EPOCH {epoch} rank {rank} of {world} batch {batch}\n")
    sys.stdout.flush()
