"""Behaviour cloning of CartPole-v1 on several ranks: each gets its part of the same global batches.

``torchrun --nproc-per-node 2 -m scripts.recipes.ranks demos`` trains with gloo on CPUs. Any number of ranks dividing
the batch size sees the same batches in the same order, so the weights agree with those of one rank but for the rounding
of sums. Each rank prints a hash of its weights, which is that of every other.
"""

import argparse
import gc
import hashlib
import os
from collections.abc import Sequence

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import rlx


def main(arguments: Sequence[str] | None = None) -> float:
    """Train; return the mean loss of the last epoch over all ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="Directory or id of a dataset of CartPole-v1.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256, help="Steps per batch, over all ranks.")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    options = parser.parse_args(arguments)
    if "RANK" not in os.environ:
        parser.error("expected the environment of torchrun: torchrun --nproc-per-node 2 -m scripts.recipes.ranks ...")
    distributed.init_process_group("gloo")
    torch.manual_seed(options.seed)  # the same first weights on each rank
    torch.set_num_threads(1)

    network = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    parallel = DistributedDataParallel(network)  # averages the gradients of all ranks
    optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate)
    loader = rlx.loader(options.dataset, options.batch_size, seed=options.seed)
    mean = torch.zeros(())
    for _ in range(options.epochs):
        losses = []
        for batch in loader:  # this rank's part of each global batch
            loss = functional.cross_entropy(parallel(batch["observation"]), batch["action"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean()
        distributed.all_reduce(mean)
        mean /= distributed.get_world_size()

    raw = b"".join(tensor.numpy().tobytes() for tensor in network.state_dict().values())
    digest = hashlib.blake2b(raw, digest_size=8).hexdigest()
    print(f"rank {loader.rank} of {loader.world_size}: loss {float(mean):.6f}, weights {digest}", flush=True)
    distributed.barrier()  # torchrun ends all ranks once one has failed: let all have printed
    del parallel  # its gradient buckets hold threads of gloo, which must end before the process does
    gc.collect()
    distributed.destroy_process_group()
    return float(mean)


if __name__ == "__main__":
    main()
