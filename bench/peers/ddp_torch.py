"""PyTorch's DistributedDataParallel over gloo, for bench/ddp.cpp: ddp_torch.py RANKS ROUNDS

Prints milliseconds of a step alone, of a step together, and the median ratio."""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def mlp():
    return nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())


class Trainer:
    def __init__(self, net):
        self.net, self.adam = net, torch.optim.Adam(net.parameters(), lr=1e-4)
        self.x, self.y = torch.randn(64, 1024), torch.randn(64, 1024)

    def step(self):
        self.adam.zero_grad(set_to_none=True)
        nn.functional.mse_loss(self.net(self.x), self.y).backward()
        self.adam.step()


def timed(trainer, steps):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        trainer.step()
    dist.barrier()
    return (time.perf_counter() - begin) / steps * 1e3


def run(rank, ranks, rounds, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=ranks)
    torch.manual_seed(1)
    alone = Trainer(mlp())
    together = Trainer(nn.parallel.DistributedDataParallel(mlp(), gradient_as_bucket_view=True))
    times = [(timed(alone, 8), timed(together, 8)) for _ in range(rounds + 1)][1:]
    if rank == 0:
        print(statistics.median(a for a, _ in times), statistics.median(b for _, b in times),
              statistics.median(b / a for a, b in times))
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks, rounds = int(sys.argv[1]), int(sys.argv[2])
    path = f"/tmp/tutti-bench-torch-{os.getpid()}"
    try:
        mp.spawn(run, args=(ranks, rounds, path), nprocs=ranks)
    finally:
        if os.path.exists(path):
            os.remove(path)
