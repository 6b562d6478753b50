#!/usr/bin/env python3
"""Compares a job beside processes that compute on its cores: the MPI's own transport, weir, and weir with the usual time slice.

    tools/beside_load.py
    tools/beside_load.py --hosts 2 --ranks 4 --mpi intel
    tools/beside_load.py --loops 0 --ranks 8

One busy loop runs on each core, as another job or a compiler would. The contenders run in turn, once in each round. A cell has
the median and the extremes of the time of one operation in microseconds, of 8 bytes if it has sizes; `-`: not within the time
limit. `--loops 0` shows that a short slice costs nothing without such processes.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys

import imb
import imb_hosts
import launch
import netns

CORES = sorted(os.sched_getaffinity(0))
CONTENDERS = {"own": None, "weir": {}, "weir, usual slice": {"FI_WEIR_SHORT_SLICE": "0"}}


@contextlib.contextmanager
def busy_cores(loops):
    """While it lasts, `loops` busy loops run on each core."""
    running = [subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", "while True: pass"]) for core in CORES * loops]
    try:
        yield
    finally:
        for loop in running:
            loop.kill()
            loop.wait()


def run(options, settings, benchmark):
    """The time of an operation in us, None if it did not end. `settings`: those of weir; None: the own transport."""
    program = imb.program(options.ranks, [benchmark], "-msglog", "3:4", "-iter", options.iterations, "-time", options.time,
                          "-iter_policy", "off", mpi=options.mpi)
    if options.hosts:
        environment = netns.own_network(options.mpi) if settings is None else None
        chosen = None if settings is None else {"FI_WEIR_LINK": "shm,udp", **netns.with_collectives(False), **settings}
        with netns.Hosts(options.hosts) as hosts:
            words, env = hosts.mpiexec(options.mpi, options.ranks, program, settings=chosen, environment=environment)
            outcome = launch.run(words, timeout=options.timeout, env=env)
    elif settings is None:
        words, env = [*launch.plain_mpiexec(options.mpi, options.ranks), *program], launch.plain_environment(options.mpi)
        outcome = launch.run(words, timeout=options.timeout, env=env)
    else:
        flags = ["--quiet", "--collectives", options.collectives]
        flags += [word for pair in settings.items() for word in ("--set", "=".join(pair))]
        outcome = launch.run(launch.weir_run(options.ranks, program, mpi=options.mpi, flags=flags), timeout=options.timeout)
    found = imb_hosts.rows(outcome.output)
    return next((us for (_, size), us in found.items() if size in (None, 8)), None)


def cell(times):
    ended = [us for us in times if us is not None]
    if len(ended) < len(times):
        return "-"
    return f"{statistics.median(ended):,.1f} ({min(ended):,.1f} to {max(ended):,.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi", choices=["mpich", "intel"], default="mpich", help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--hosts", type=int, default=0, help="number of pretended hosts (default: this machine alone)")
    parser.add_argument("--loops", type=int, default=1, help="busy loops on each core (default: %(default)s)")
    parser.add_argument("--collectives", choices=["on", "off"], default="on", help="by groups, in one node (default: %(default)s)")
    parser.add_argument("--benchmarks", default="PingPong,Barrier,Allreduce,Alltoall", help="of IMB-MPI1 (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--iterations", type=int, default=200, help="operations of a run (default: %(default)s)")
    parser.add_argument("--time", type=float, default=20, help="IMB's time limit of a size in seconds (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=60, help="time limit of a run in seconds (default: %(default)s)")
    options = parser.parse_args()
    if options.hosts and (reason := netns.reason_not_possible()):
        raise SystemExit(reason)
    launch.require(launch.mpiexec(options.mpi), launch.PROVIDER, launch.WEIR)
    place = f"{options.hosts} hosts" if options.hosts else "one node"
    print(f"{options.mpi}, {options.ranks} ranks, {place}, {options.loops} busy loops on each of {len(CORES)} cores; "
          f"us for one operation, median of {options.rounds} (least to most)")
    print(f"  {'':12}" + "".join(f"{name:>30}" for name in CONTENDERS), flush=True)
    with busy_cores(options.loops):
        for benchmark in options.benchmarks.split(","):
            times = {name: [] for name in CONTENDERS}
            for _ in range(options.rounds):
                for name, settings in CONTENDERS.items():
                    times[name].append(run(options, settings, benchmark))
            print(f"  {benchmark:12}" + "".join(f"{cell(of):>30}" for of in times.values()), flush=True)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main()
