#!/usr/bin/env python3
"""How often each rank must have a core for one barrier, when ranks outnumber cores and cores give turns in a fixed order.

A barrier by dissemination, as MPICH has it: in round k rank r sends to r + 2^k and waits for r - 2^k. All cores change ranks at the same time. In its turn a rank goes
as far as it can with what others had sent when the turn began; whoever leaves a barrier enters the next one in the same turn. Drawn are ways to place the ranks
on the cores and in their orders; printed are the least number of turns for a barrier and rank, what one order in twenty stays below, the median and the greatest.
docs/explanation/waiting.md compares that with what `weir run -n 8 -- measure collectives 0.3 8` counts.
"""

import argparse
import random
import statistics

BARRIERS = 300


def turns(order, cores):
    """Turns of a rank for a barrier. `order`: the ranks, dealt out to the cores one after the other."""
    ranks, rounds = len(order), (len(order) - 1).bit_length()
    queues = [order[core::cores] for core in range(cores)]
    done, taken = [0] * ranks, 0  # rounds that a rank has finished; it has sent in each of them and the one after
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
    parser.add_argument("--ranks", default="8,16", help="powers of two or not, with commas (default: %(default)s)")
    parser.add_argument("--cores", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--orders", type=int, default=400, help="orders drawn (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    options = parser.parse_args()
    print(f"{'ranks':>6} {'cores':>6} {'least':>7} {'5 %':>7} {'median':>7} {'greatest':>9}   turns of a rank for a barrier, {options.orders} orders")
    for ranks in map(int, options.ranks.split(",")):
        if ranks <= options.cores or options.cores < 1 or ranks % options.cores:
            parser.error(f"--ranks {ranks}: allowed are multiples of --cores {options.cores}, and more than that")
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
