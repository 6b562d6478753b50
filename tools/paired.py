#!/usr/bin/env python3
"""Settings of weir and its MPI side by side: `measure` under each of them in turn, and the ratios to the first, round by round.

A machine whose speed changes from minute to minute says little about two runs an hour apart, but something about two that follow each other. So each
round runs every contender once, each time beginning with another one; printed are the median ratio to the first contender, its quartiles, and the ratio
of the best values of each. `intel` is Intel MPI's own mpiexec and shared memory, `ucx` and `shm` MPICH over UCX and over libfabric's shm, `floor` the collectives without any MPI or
protocol (tests/mpi/floor.c); every other contender is `weir run` with what is set for it:

    tools/paired.py --rounds 25 "collectives 0.15 2048" now "k3:MPIR_CVAR_BARRIER_INTRA_ALGORITHM=k_dissemination;MPIR_CVAR_BARRIER_DISSEM_KVAL=3" intel
    tools/paired.py --rounds 25 "collectives 0.15 2048" now intel "intel:I_MPI_COLL_INTRANODE=pt2pt" floor
    tools/paired.py --ranks 2 "ends 0.3 8" now ucx
    tools/paired.py --beside 2 "incast 0.2 2048" now "before:WEIR_PROVIDER_PATH=/tmp/before/libweir-fi.so"

With --beside each contender also runs with so many ranks, and its ratio between the two is printed.
"""

import argparse
import re
import statistics

import launch

WHAT = ("ranks", "senders", "bytes", "window", "windows")  # what was measured, not what was found
MEASURE = launch.ROOT / "tests" / "mpi" / "measure.c"
FLOOR = launch.ROOT / "tests" / "mpi" / "floor.c"
OTHERS = {
    "intel": ("intel", {}),
    "ucx": ("mpich", {"MPIR_CVAR_CH4_NETMOD": "ucx", "MPIR_CVAR_NOLOCAL": "1"}),
    "shm": ("mpich", {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1", "FI_PROVIDER": "shm"}),
}


def command(name, ranks, measure):
    if name == "floor":
        return [launch.compile_c(FLOOR), ranks, *measure[1:]], launch.plain_environment("mpich")
    program = [launch.compile_c(MEASURE), *measure]
    if name in OTHERS:
        mpi, settings = OTHERS[name]
        return [*launch.plain_mpiexec(mpi, ranks), *program], launch.plain_environment(mpi) | settings
    return launch.weir_run(ranks, program, flags=["-q"]), {}


def values(contender, ranks, measure, timeout):
    """{(line, key): value} of one run: `barrier us` and the like."""
    name, _, settings = contender.partition(":")
    words, env = command(name, ranks, measure)
    env |= dict(setting.split("=", 1) for setting in settings.split(";") if setting)
    outcome = launch.run([str(word) for word in words], env=env, timeout=timeout)
    if not outcome.ok:
        raise SystemExit(f"{name}: {outcome}")
    lines = [line.split() for line in outcome.output.splitlines() if "=" in line]
    return {(line[0], key): float(value) for line in lines for key, value in re.findall(r"(\w+)=([0-9.]+)(?:\s|$)", " ".join(line[1:])) if key not in WHAT}


def spread(found):
    """Median and quartiles."""
    quartiles = statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    return f"{statistics.median(found):10.4g} ({quartiles[0]:.4g} .. {quartiles[2]:.4g})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measure", type=str.split, help="arguments of tests/mpi/measure.c, as one word: what, seconds, bytes")
    parser.add_argument("contenders", nargs="+", metavar="NAME[:VARIABLE=VALUE[;...]]", help="the first is what others are compared with")
    parser.add_argument("--ranks", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--beside", type=int, metavar="RANKS", help="run each with so many ranks as well")
    parser.add_argument("--rounds", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--timeout", type=float, default=60, help="for a run (default: %(default)s s)")
    options = parser.parse_args()
    contenders, rounds = options.contenders, []
    for number in range(options.rounds):
        first = number % len(contenders)
        found = {}
        for contender in contenders[first:] + contenders[:first]:
            for ranks in filter(None, (options.beside, options.ranks)):
                found[contender, ranks] = values(contender, ranks, options.measure, options.timeout)
        rounds.append(found)
    reference = contenders[0]
    for contender in contenders:
        print(contender)
        for key in rounds[0][contender, options.ranks]:
            mine = [found[contender, options.ranks][key] for found in rounds if key in found[contender, options.ranks]]
            line = f"    {' '.join(key):32}{spread(mine)}"
            theirs = [found[reference, options.ranks].get(key) for found in rounds]
            if contender != reference and len(mine) == len(theirs) and all(theirs):
                ratios = [one / other for one, other in zip(mine, theirs, strict=True)]
                best = max if key[1].endswith("per_s") else min
                line += f"   x {spread(ratios)}   best {best(mine) / best(theirs):.3f}"
            if options.beside:
                fewer = [found[contender, options.beside].get(key) for found in rounds]
                if len(mine) == len(fewer) and all(fewer):
                    line += f"   over {options.beside} ranks {spread([one / other for one, other in zip(mine, fewer, strict=True)])}"
            print(line)
    print(f"{options.rounds} rounds; median (quartiles); x: over {reference.partition(':')[0]}, round by round")


if __name__ == "__main__":
    main()
