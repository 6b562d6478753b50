#!/usr/bin/env python3
"""Runs the stress program, which checks its data, over weir: 2 to 8 ranks, all schemes, smallest mailboxes."""

import argparse
import random
import sys

import launch

SOURCE = launch.ROOT / "tests" / "mpi" / "stress.c"


def smallest(ranks):
    """Flags for one data slot and one credit slot of each sender, the least that weir allows."""
    return ["--flow", "static", "--credit-slots", "1", "--mailbox-slots", str(ranks)]


def settings(ranks):
    """Settings that run with each number of ranks: {name: flags of `weir run`}."""
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
        "dynamic": ["--flow", "dynamic"],
        "dynamic, smallest": ["--flow", "dynamic", "--credit-slots", "1", "--mailbox-slots", str(ranks)],
        "demand": ["--flow", "demand"],
        "demand, smallest": ["--flow", "demand", "--credit-slots", "1", "--mailbox-slots", str(ranks)],
        "demand, scarce": ["--flow", "demand", "--mailbox-slots", str(6 * ranks)],
        "dynamic as published, scarce": ["--flow", "dynamic", "--mailbox-slots", str(6 * ranks), "--set", "FI_WEIR_ATTACH=start"],
        "64 envelopes": ["--set", "FI_WEIR_ENVELOPE_BUDGET=4096"],
        "64 envelopes, dynamic": ["--flow", "dynamic", "--set", "FI_WEIR_ENVELOPE_BUDGET=4096"],
        "64 envelopes, smallest": [*smallest(ranks), "--set", "FI_WEIR_ENVELOPE_BUDGET=4096"],
        "no cross-memory attach": ["--set", "FI_WEIR_CROSS_MEMORY=0"],
        "smallest, no cross-memory": [*smallest(ranks), "--set", "FI_WEIR_CROSS_MEMORY=0"],
    }


def run(ranks, flags, arguments, *, timeout, mpi="mpich", report=None):
    """Runs the program once. Returns its outcome, and whether all data was correct."""
    program = [launch.compile_c(SOURCE, mpi), *map(str, arguments)]
    result = launch.run(launch.weir_run(ranks, program, mpi=mpi, flags=flags, report=report), timeout=timeout)
    return result, result.ok and "all correct" in result.output


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,3,4,5,6,7,8", help="numbers of ranks, separated by commas (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of a run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the run to repeat (default: a new one)")
    parser.add_argument("--mpi", default="mpich", help="the MPI (default: %(default)s)")
    parser.add_argument("--only", default="", help="run only settings whose name contains this text")
    parser.add_argument("--timeout", type=float, default=300, help="time limit of a run in seconds (default: %(default)s)")
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
            if name == "smallest, no cross-memory":  # large messages travel slot by slot
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
