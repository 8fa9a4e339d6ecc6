"""PyTorch's RPC between two processes of a host, for bench/rpc.cpp: rpc_torch.py ROUNDS

Prints seconds of an empty call, of an echo of 4 MB and of 16 MB, asynchronous calls a second, and seconds of a remote
Linear(256, 256) forward and distributed backward, batch 64."""
import os
import socket
import statistics
import sys
import time

import torch
import torch.multiprocessing as mp
from torch.distributed import autograd as dist_autograd
from torch.distributed import rpc


def add_one(x):
    return x + 1


def echo(x):
    return x


def time_of(rounds, count, f):
    f()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(count):
            f()
        times.append((time.perf_counter() - begin) / count)
    return statistics.median(times)


def many():
    torch.futures.wait_all([rpc.rpc_async("worker1", add_one, args=(i,)) for i in range(1000)])


def remote_linear(layer, x):
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [layer.rpc_sync().forward(x).sum()])


def run(rank, rounds, port):
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", num_worker_threads=16)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        print(time_of(rounds, 100, lambda: rpc.rpc_sync("worker1", add_one, args=(1,))))
        for megabytes in (4, 16):
            x = torch.ones(megabytes * 250_000)
            print(time_of(rounds, 5, lambda: rpc.rpc_sync("worker1", echo, args=(x,))))
        print(1000 / time_of(rounds, 1, many))
        layer = rpc.remote("worker1", torch.nn.Linear, args=(256, 256))
        x = torch.randn(64, 256)
        print(time_of(rounds, 20, lambda: remote_linear(layer, x)))
        sys.stdout.flush()
    rpc.shutdown()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(run, args=(int(sys.argv[1]), port), nprocs=2)
