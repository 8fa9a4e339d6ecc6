"""all_reduce by PyTorch over gloo, for bench/comm.cpp: comm_torch.py RANKS BYTES...

Prints "bytes seconds" for each size: the median of five samples of about 30 ms, as the other peers do."""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def timed(x, calls):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(x)
    return time.perf_counter() - begin


def run(rank, ranks, sizes, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=ranks)
    for size in sizes:
        x = torch.zeros(size // 4)
        timed(x, 3)
        first = torch.tensor([timed(x, 3) / 3])
        dist.broadcast(first, 0)
        calls = min(max(int(0.03 / first.item()), 3), 20000)
        seconds = statistics.median(timed(x, calls) / calls for _ in range(5))
        if rank == 0:
            print(size, seconds, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks, sizes = int(sys.argv[1]), [int(a) for a in sys.argv[2:]]
    path = f"/tmp/tutti-bench-comm-torch-{os.getpid()}"
    try:
        mp.spawn(run, args=(ranks, sizes, path), nprocs=ranks)
    finally:
        if os.path.exists(path):
            os.remove(path)
