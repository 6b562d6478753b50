#!/usr/bin/env python3
"""Runs Intel's MPI benchmarks (IMB-MPI1) over weir with all their default sizes, and checks that each completes."""

import argparse
import re
import sys

import launch

MPICH = ("PingPong PingPing Sendrecv Exchange Allreduce Reduce Reduce_scatter Allgather Allgatherv Gather Scatter "
         "Alltoall Alltoallv Bcast Barrier").split()
INTEL = "PingPong Exchange Alltoall Barrier".split()


def program(ranks, benchmarks, *options):
    """The command of a run on exactly this number of ranks."""
    return [launch.imb(), "-npmin", str(ranks), *options, *benchmarks]


def complete(output, benchmarks):
    """Whether all benchmarks printed rows, none exceeded its time, and the program ended normally."""
    sections = output.split("# Benchmarking ")[1:]
    with_rows = {section.split()[0] for section in sections if re.search(r"^ +\d+ +[\d.]+", section, re.MULTILINE)}
    return "# All processes entering MPI_Finalize" in output and "time-out" not in output and with_rows == set(benchmarks)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timeout", type=float, default=900, help="time limit of a run in seconds (default: %(default)s)")
    parser.add_argument("--flow", default="dynamic", help="schemes, separated by commas (default: %(default)s)")
    parser.add_argument("--ranks", default="2,4,8", help="numbers of ranks under MPICH, separated by commas (default: %(default)s)")
    # IMB leaves out sizes on a slow machine if this time is short.
    parser.add_argument("--time", default="100", help="time limit of a size in seconds (default: %(default)s)")
    parser.add_argument("--iterations", help="most repetitions of a size (default: that of IMB, 1000 and fewer for long messages)")
    parser.add_argument("--mpi", default="mpich,intel", help="MPIs, separated by commas; Intel MPI runs with 2 and 4 ranks (default: %(default)s)")
    options = parser.parse_args()
    launch.require(launch.WEIR, launch.PROVIDER, launch.imb())
    failed = 0
    limits = ["-time", options.time] + (["-iter", options.iterations] if options.iterations else [])
    runs = {"mpich": [("mpich", int(ranks), MPICH) for ranks in options.ranks.split(",")],
            "intel": [("intel", ranks, INTEL) for ranks in (2, 4)]}
    for flow in options.flow.split(","):
        for mpi, ranks, benchmarks in [run for mpi in options.mpi.split(",") for run in runs[mpi]]:
            for benchmark in benchmarks:
                words = launch.weir_run(ranks, program(ranks, [benchmark], *limits), mpi=mpi,
                                        flags=["--quiet", "--flow", flow])
                result = launch.run(words, timeout=options.timeout)
                good = result.ok and complete(result.output, [benchmark])
                failed += not good
                print(f"{flow:17} {mpi:6} {ranks} ranks  {benchmark:15} {'ok' if good else 'FAILED':6} {result.seconds:7.1f} s", flush=True)
                if not good:
                    print(result)
    print(f"{failed} benchmarks failed" if failed else "all benchmarks completed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
