#!/usr/bin/env python3
"""Computes how often each rank needs a core for one barrier, with more ranks than cores and a fixed order of ranks.

The barrier is a dissemination barrier, as in MPICH: in round k rank r sends to r + 2^k and waits for r - 2^k. All cores
change ranks at the same time. A rank uses the messages that were sent before its turn on the core. A rank that leaves
a barrier enters the next one in the same turn. The tool draws random orders of ranks on the cores. It prints the number
of turns for a barrier and rank: least, 5 % quantile, median and greatest. docs/explanation/waiting.md compares it with
the count of `weir run -n 8 -- measure collectives 0.3 8`.
"""

import argparse
import random
import statistics

BARRIERS = 300


def turns(order, cores):
    """Turns of a rank for a barrier. `order`: the ranks, assigned to the cores in turn."""
    ranks, rounds = len(order), (len(order) - 1).bit_length()
    queues = [order[core::cores] for core in range(cores)]
    done, taken = [0] * ranks, 0  # rounds that each rank has completed; it has sent in these and in the next one
    while min(done) < BARRIERS * rounds:
        seen = list(done)
        for queue in queues:
            rank = queue[taken % len(queue)]
            while seen[rank - (1 << done[rank] % rounds)] >= done[rank]:
                done[rank] += 1
        taken += 1
    return taken * cores / ranks / BARRIERS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="8,16", help="numbers of ranks, separated by commas (default: %(default)s)")
    parser.add_argument("--cores", type=int, default=2, help="number of cores (default: %(default)s)")
    parser.add_argument("--orders", type=int, default=400, help="number of random orders (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the orders (default: %(default)s)")
    options = parser.parse_args()
    print(f"{'ranks':>6} {'cores':>6} {'least':>7} {'5 %':>7} {'median':>7} {'greatest':>9}   turns of a rank for a barrier, {options.orders} orders")
    for ranks in map(int, options.ranks.split(",")):
        if ranks <= options.cores or options.cores < 1 or ranks % options.cores:
            parser.error(f"--ranks {ranks}: allowed: multiples of --cores {options.cores}, larger than it")
        generator, found = random.Random(options.seed), []
        for _ in range(options.orders):
            order = list(range(ranks))
            generator.shuffle(order)
            found.append(turns(order, options.cores))
        found.sort()
        twentieth = found[(len(found) - 1) // 20]
        print(f"{ranks:6} {options.cores:6} {found[0]:7.2f} {twentieth:7.2f} {statistics.median(found):7.2f} {max(found):9.2f}")


if __name__ == "__main__":
    main()
