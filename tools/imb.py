#!/usr/bin/env python3
"""Runs Intel's MPI benchmarks over weir with all their default sizes, and checks that each completes.

The programs are IMB-MPI1, IMB-P2P (many messages at once), IMB-RMA (one-sided) and IMB-NBC (non-blocking collectives). Under
Open MPI copies of them run, see imb_openmpi.py.
"""

import argparse
import re
import sys

import imb_openmpi
import launch

BENCHMARKS = {
    "IMB-MPI1": ("PingPong PingPing Sendrecv Exchange Allreduce Reduce Reduce_scatter Allgather Allgatherv Gather Scatter "
                 "Alltoall Alltoallv Bcast Barrier").split(),
    "IMB-P2P": "PingPong PingPing Unirandom Birandom Corandom SendRecv_Replace Stencil2D Stencil3D".split(),
    "IMB-RMA": ("Accumulate All_get_all All_put_all Bidir_get Bidir_put Compare_and_swap Exchange_get Exchange_put "
                "Fetch_and_op Get_accumulate One_get_all One_put_all Put_all_local Put_local Truly_passive_put "
                "Unidir_get Unidir_put").split(),
    "IMB-NBC": ("Iallgather Iallgatherv Iallreduce Ialltoall Ialltoallv Ibarrier Ibcast Igather Igatherv Ireduce "
                "Ireduce_scatter Iscatter Iscatterv").split(),
}
MPIS = ["mpich", "intel", "openmpi"]
# Intel MPI runs these of IMB-MPI1, and all of the other programs.
INTEL = "PingPong Exchange Alltoall Barrier".split()
# IMB runs these with two ranks only.
FOR_TWO_RANKS = {"Compare_and_swap", "Fetch_and_op"}
# The least ranks of a benchmark, if it needs more than two.
LEAST_RANKS = {"Stencil2D": 4, "Stencil3D": 8}


def benchmarks_of(mpi, name, ranks):
    names = INTEL if (mpi, name) == ("intel", "IMB-MPI1") else BENCHMARKS[name]
    return [benchmark for benchmark in names
            if ranks >= LEAST_RANKS.get(benchmark, 2) and (ranks == 2 or benchmark not in FOR_TWO_RANKS)]


def program(ranks, benchmarks, *options, name="IMB-MPI1", mpi="mpich"):
    """The command of a run of the program `name` on exactly this number of ranks, under this MPI."""
    path = imb_openmpi.program(name) if mpi == "openmpi" else launch.imb(name)
    return [path, "-npmin", str(ranks), *options, *benchmarks]


def complete(output, benchmarks):
    """Whether all benchmarks printed rows, none exceeded its time, and the program ended normally."""
    sections = output.split("# Benchmarking ")[1:]
    with_rows = {section.split()[0] for section in sections if re.search(r"^ +\d+ +[\d.]+", section, re.MULTILINE)}
    return "# All processes entering MPI_Finalize" in output and "time-out" not in output and with_rows == set(benchmarks)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timeout", type=float, default=900, help="time limit of a run in seconds (default: %(default)s)")
    parser.add_argument("--flow", default="demand", help="schemes, separated by commas (default: %(default)s)")
    parser.add_argument("--ranks", help="numbers of ranks, separated by commas (default: 2,4,8 under MPICH, 2,4 under the others)")
    # IMB leaves out sizes on a slow machine if this time is short.
    parser.add_argument("--time", default="100", help="time limit of a size in seconds (default: %(default)s)")
    parser.add_argument("--iterations", help="most repetitions of a size (default: that of IMB, 1000 and fewer for long messages)")
    parser.add_argument("--mpi", default=",".join(MPIS), help="MPIs, separated by commas (default: %(default)s)")
    parser.add_argument("--collectives", choices=["on", "off"], help="setting of `weir run` (default: that of weir)")
    parser.add_argument("--only", help="benchmarks, separated by commas (default: all, and some of IMB-MPI1 under Intel MPI)")
    parser.add_argument("--programs", default="IMB-MPI1", help=f"programs, separated by commas; allowed: {', '.join(BENCHMARKS)} (default: %(default)s)")
    options = parser.parse_args()
    programs = options.programs.split(",")
    if unknown := [name for name in programs if name not in BENCHMARKS]:
        parser.error(f"--programs {unknown[0]}; allowed: {', '.join(BENCHMARKS)}")
    mpis = options.mpi.split(",")
    if unknown := [mpi for mpi in mpis if mpi not in MPIS]:
        parser.error(f"--mpi {unknown[0]}; allowed: {', '.join(MPIS)}")
    launch.require(launch.WEIR, launch.PROVIDER, *map(launch.imb, programs))
    failed = 0
    limits = ["-time", options.time] + (["-iter", options.iterations] if options.iterations else [])
    flags = ["--quiet", *(["--collectives", options.collectives] if options.collectives else [])]
    ranks_of = {"mpich": "2,4,8", "intel": "2,4", "openmpi": "2,4"}
    runs = [(mpi, int(ranks), name) for mpi in mpis for ranks in (options.ranks or ranks_of[mpi]).split(",") for name in programs]
    for flow in options.flow.split(","):
        for mpi, ranks, name in runs:
            wanted = options.only.split(",") if options.only else benchmarks_of(mpi, name, ranks)
            for benchmark in wanted:
                words = launch.weir_run(ranks, program(ranks, [benchmark], *limits, name=name, mpi=mpi), mpi=mpi,
                                        flags=[*flags, "--flow", flow])
                result = launch.run(words, timeout=options.timeout)
                good = result.ok and complete(result.output, [benchmark])
                failed += not good
                print(f"{flow:17} {mpi:7} {ranks} ranks  {benchmark:17} {'ok' if good else 'FAILED':6} {result.seconds:7.1f} s", flush=True)
                if not good:
                    print(result)
    print(f"{failed} benchmarks failed" if failed else "all benchmarks completed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
