#!/usr/bin/env python3
"""Runs Intel's MPI benchmarks across pretended hosts, over weir and over the MPI's own network, and compares.

    tools/imb_hosts.py --programs IMB-MPI1,IMB-NBC --hosts 4 --ranks 8 --mpi intel
    tools/imb_hosts.py --only Gather --rounds 3

Each benchmark is a run of its own over weir, then over the own network (`tcp` of libfabric, or Open MPI's own), so that a hang
names its benchmark. A line has the times of weir over those of the own network: their median over all sizes and the worst size.
Times of each size are the least of the rounds. Benchmarks of two ranks use the first two: with more ranks than hosts these are
on one host. The status is 1 if a benchmark does not complete over weir but does over the own network, or was not run there.
Under Open MPI copies of the programs run, see imb_openmpi.py. With `--set FI_WEIR_ADMIT=...` a line for each MPI says what admission
has held back.
"""

import argparse
import re
import statistics
import sys
import tempfile

import imb
import launch
import netns

PROGRAMS = {
    "IMB-MPI1": ("PingPong PingPing Sendrecv Exchange Allreduce Reduce Reduce_scatter Reduce_scatter_block Allgather Allgatherv "
                 "Gather Gatherv Scatter Scatterv Alltoall Alltoallv Bcast Barrier Uniband Biband PingPongSpecificSource "
                 "PingPongAnySource PingPingSpecificSource PingPingAnySource").split(),
    "IMB-P2P": imb.BENCHMARKS["IMB-P2P"],
    "IMB-RMA": imb.BENCHMARKS["IMB-RMA"],
    "IMB-NBC": imb.BENCHMARKS["IMB-NBC"],
}
OTHER_RANKS = "not for so many ranks"
# The time of a row is in the first of these columns that it has.
TIMES = ["t_avg[usec]", "t_pure[usec]", "t[usec]"]


def rows(output):
    """Times by (mode, bytes). A benchmark without sizes has the size None. Unit: us."""
    found, mode, header = {}, "", None
    for line in output.splitlines():
        words = line.split()
        if "MODE:" in line:
            mode = words[2].lower()
        elif words and words[0] in ("#bytes", "#repetitions"):
            header = words
        elif header and re.fullmatch(r" +\d+( +[\d.]+)+", line.rstrip()) and len(words) == len(header):
            row = dict(zip(header, words))
            column = next((name for name in TIMES if name in row), None)
            if column:
                found[mode, int(row["#bytes"]) if "#bytes" in row else None] = float(row[column])
    return found


def once(way, name, benchmark, options, held_back=None):
    """Returns the rows of a run, and None or why it did not complete. `held_back`: a list for what admission does; None: without
    weir."""
    mpi, ranks = way
    program = imb.program(ranks, [benchmark], "-msglog", options.msglog, "-iter", options.iterations, "-time", options.time,
                          "-iter_policy", "off", name=name, mpi=mpi)
    chosen = netns.with_collectives(options.collectives == "on") | dict(pair.split("=", 1) for pair in options.set)
    with tempfile.TemporaryDirectory(dir=launch.OUT) as counters, netns.Hosts(options.hosts) as hosts:
        where = {"environment": netns.own_network(mpi)}
        if held_back is not None:
            where = {"settings": {"FI_WEIR_LINK": f"shm,{options.link}", "FI_WEIR_STATS": counters, **chosen}}
        words, env = hosts.mpiexec(mpi, ranks, program, **where)
        outcome = launch.run(words, timeout=options.timeout, env=env)
        if held_back is not None and "FI_WEIR_ADMIT" in chosen:
            held_back.append(launch.held_back(counters))
    found = rows(outcome.output)
    has_ended = "# All processes entering MPI_Finalize" in outcome.output and "time-out" not in outcome.output
    if "is invalid for" in outcome.output or (has_ended and not re.search(r"^ +\d+ +[\d.]+", outcome.output, re.MULTILINE)):
        return {}, OTHER_RANKS
    if outcome.status is None:
        return found, f"no end in {options.timeout:g} s"
    good = outcome.ok and imb.complete(outcome.output, [benchmark])
    return found, None if good else f"status {outcome.status}: {outcome.output[-600:]}"


def least(all_rows):
    keys = set().union(*all_rows)
    return {key: min(rows[key] for rows in all_rows if key in rows) for key in keys}


def compare(way, name, benchmark, options, held_back):
    """Prints a line. Returns whether weir did no worse than the own network as to completing."""
    weir, own, failure, own_failure = [], [], None, None
    for _ in range(options.rounds):
        found, why = once(way, name, benchmark, options, held_back)
        weir, failure = [*weir, found], failure or why
        if not options.alone:
            found, why = once(way, name, benchmark, options)
            own, own_failure = [*own, found], own_failure or why
    ours, theirs = least(weir), least(own or [{}])
    ratios = {key: ours[key] / theirs[key] for key in ours if theirs.get(key, 0) > 0}
    text = failure or "complete"
    if own_failure and own_failure != failure:
        text += f"; own network: {own_failure}"
    line = f"  {name:9} {benchmark:24} {len(ours):4} rows"
    if ratios:
        worst = max(ratios, key=ratios.get)
        size = " ".join(str(part) for part in worst if part not in ("", None))
        line += (f"  {statistics.median(ratios.values()):6.2f} x, worst {ratios[worst]:7.2f} x"
                 f" ({size + ' B: ' if size else ''}{ours[worst]:.0f} us)")
    print(f"{line}  {text}", flush=True)
    return failure in (None, OTHER_RANKS, own_failure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="programs, separated by commas (default: %(default)s)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this benchmark; can be repeated")
    parser.add_argument("--mpi", default=",".join(imb.MPIS), help="MPIs, separated by commas (default: %(default)s)")
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=4, help="number of ranks (default: %(default)s)")
    parser.add_argument("--link", default="udp", help="weir's link between hosts (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable of the ranks over weir")
    parser.add_argument("--collectives", choices=["on", "off"], default="off",
                        help="over weir: collective operations by groups, also across hosts (default: %(default)s)")
    parser.add_argument("--msglog", default="0:16", help="least and greatest exponent of a size (default: %(default)s)")
    parser.add_argument("--iterations", default="20", help="repetitions of a size (default: %(default)s)")
    parser.add_argument("--time", default="2", help="time limit of a size in seconds (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=60, help="time limit of a benchmark in seconds (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each benchmark, in turn (default: %(default)s)")
    parser.add_argument("--alone", action="store_true", help="no run over the own network")
    options = parser.parse_args()
    programs = options.programs.split(",")
    if unknown := [name for name in programs if name not in PROGRAMS]:
        parser.error(f"--programs {unknown[0]}; allowed: {', '.join(PROGRAMS)}")
    if wrong := [pair for pair in options.set if "=" not in pair]:
        parser.error(f"--set {wrong[0]}; allowed: NAME=VALUE")
    mpis = options.mpi.split(",")
    if unknown := [mpi for mpi in mpis if mpi not in imb.MPIS]:
        parser.error(f"--mpi {unknown[0]}; allowed: {', '.join(imb.MPIS)}")
    if reason := netns.reason_not_possible():
        raise SystemExit(reason)
    launch.require(launch.PROVIDER, *map(launch.imb, programs))
    worse = 0
    for mpi in mpis:
        beside = "" if options.alone else "; times over those of the own network"
        print(f"{mpi}, {options.ranks} ranks on {options.hosts} hosts, {options.link}, 2^{options.msglog} B, "
              f"{options.iterations} repetitions{beside}", flush=True)
        held_back = []
        for name in programs:
            for benchmark in PROGRAMS[name]:
                if not options.only or benchmark in options.only:
                    worse += not compare((mpi, options.ranks), name, benchmark, options, held_back)
        if held_back:
            print(f"  {launch.describe_held_back(held_back)}", flush=True)
    if options.alone:
        print(f"{worse} benchmarks do not complete" if worse else "every benchmark completes")
    else:
        print(f"{worse} benchmarks complete over the own network only" if worse
              else "every benchmark that completes without weir completes with it")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main())
