#!/usr/bin/env python3
"""The data-checking stress program over weir: 2 to 8 ranks, the smallest legal mailboxes, with and without piggybacking."""

import argparse
import random
import sys

import launch

SOURCE = launch.ROOT / "tests" / "mpi" / "stress.c"


def smallest(ranks):
    """One slot of data and one of credit for each sender: less is refused."""
    return ["--flow", "static", "--credit-slots", "1", "--mailbox-slots", str(ranks)]


def settings(ranks):
    """What is tried at each number of ranks: {name: flags of `weir run`}."""
    return {
        "default": [],
        "static": ["--flow", "static"],
        "smallest": [*smallest(ranks), "--piggyback", "on"],
        "smallest, no piggybacking": [*smallest(ranks), "--piggyback", "off"],
        "unlimited": ["--flow", "unlimited"],
        "unlimited, smallest": ["--flow", "unlimited", "--mailbox-slots", str(ranks)],
        "hardware": ["--flow", "hardware"],
        "hardware, smallest": ["--flow", "hardware", "--mailbox-slots", str(ranks)],
        "static-connection": ["--flow", "static-connection"],
        "static-connection, smallest": ["--flow", "static-connection", "--mailbox-slots", str(ranks)],
        "adaptive": ["--flow", "adaptive"],
        "adaptive, from one slot": ["--flow", "adaptive", "--set", "FI_WEIR_ADAPTIVE_START=1",
                                    "--set", "FI_WEIR_ADAPTIVE_GROWTH=linear:1"],
        "dynamic, smallest": ["--flow", "dynamic", "--credit-slots", "1", "--mailbox-slots", str(ranks)],
        "dynamic as published, scarce": ["--flow", "dynamic", "--mailbox-slots", str(6 * ranks), "--set", "FI_WEIR_ATTACH=start"],
        "no cross-memory attach": ["--set", "FI_WEIR_CROSS_MEMORY=0"],
        "smallest, no cross-memory": [*smallest(ranks), "--set", "FI_WEIR_CROSS_MEMORY=0"],
    }


def run(ranks, flags, arguments, *, timeout, mpi="mpich", report=None):
    program = [launch.compile_c(SOURCE, mpi), *map(str, arguments)]
    result = launch.run(launch.weir_run(ranks, program, mpi=mpi, flags=flags, report=report), timeout=timeout)
    return result, result.ok and "all correct" in result.output


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,3,4,5,6,7,8", help="with commas (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=60, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="repeats a run (default: a new one)")
    parser.add_argument("--mpi", default="mpich", help="(default: %(default)s)")
    parser.add_argument("--only", default="", help="settings whose name holds this")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per run (default: %(default)s)")
    options = parser.parse_args()
    launch.require(launch.WEIR, launch.PROVIDER)
    seed = random.randrange(1 << 40) if options.seed is None else options.seed
    print(f"seed {seed}")
    runs = failed = 0
    for ranks in map(int, options.ranks.split(",")):
        for name, flags in settings(ranks).items():
            if options.only not in name:
                continue
            arguments = ["--seed", seed, "--rounds", options.rounds]
            if name == "smallest, no cross-memory":  # large messages slot by slot, each after the last was read
                arguments += ["--max-bytes", 1 << 18]
            result, good = run(ranks, ["--quiet", *flags], arguments, timeout=options.timeout, mpi=options.mpi)
            runs += 1
            failed += not good
            print(f"{ranks} ranks  {name:27} {'ok' if good else 'FAILED':6} {result.seconds:7.1f} s", flush=True)
            if not good:
                print(result, flush=True)
    print(f"{failed} of {runs} runs failed" if failed else f"all {runs} runs correct, to the byte")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
