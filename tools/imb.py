#!/usr/bin/env python3
"""Intel's MPI benchmarks (IMB-MPI1) over weir with all their default sizes, and the reader of their tables."""

import argparse
import sys

import launch

MPICH = ("PingPong PingPing Sendrecv Exchange Allreduce Reduce Reduce_scatter Allgather Allgatherv Gather Scatter "
         "Alltoall Alltoallv Bcast Barrier").split()
INTEL = "PingPong Exchange Alltoall Barrier".split()


def rows(output):
    """{(benchmark, processes, bytes): time in microseconds}; bytes is None for Barrier, the time is t[usec] or t_avg."""
    found, name, processes, columns = {}, None, None, []
    for line in output.splitlines():
        words = line.split()
        if line.startswith("# Benchmarking "):
            name, columns = words[2], []
        elif line.startswith("# #processes = "):
            processes = int(words[3])
        elif words and words[0] in ("#bytes", "#repetitions"):
            columns = words
        elif len(words) == len(columns) > 0 and words[0].isdigit():
            row = dict(zip(columns, words))
            time = row.get("t_avg[usec]", row.get("t[usec]"))
            found[name, processes, int(row["#bytes"]) if "#bytes" in row else None] = float(time)
    return found


def program(ranks, benchmarks, *options):
    return [launch.imb(), "-npmin", str(ranks), *options, *benchmarks]


def complete(output, benchmarks):
    """Whether all benchmarks printed rows, none ran out of its time, and the program came to its end."""
    seen = {name for name, _, _ in rows(output)}
    return "# All processes entering MPI_Finalize" in output and "time-out" not in output and seen == set(benchmarks)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timeout", type=float, default=900, help="seconds per run (default: %(default)s)")
    parser.add_argument("--flow", default="dynamic", help="schemes, with commas (default: %(default)s)")
    parser.add_argument("--ranks", default="2,4,8", help="under MPICH, with commas (default: %(default)s)")
    # The generous time per sample keeps IMB from leaving sizes out on a slow machine.
    parser.add_argument("--time", default="100", help="seconds per size, at most (default: %(default)s)")
    parser.add_argument("--iterations", help="repetitions per size, at most (default: IMB's own, 1000 and fewer for long messages)")
    parser.add_argument("--mpi", default="mpich,intel", help="with commas; Intel MPI at 2 and 4 ranks (default: %(default)s)")
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
    print(f"{failed} of the benchmarks failed" if failed else "all benchmarks completed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
