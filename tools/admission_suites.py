#!/usr/bin/env python3
"""Runs mpi4py's suite and Intel's benchmarks across pretended hosts with each mechanism of admission forced on, and counts waits.

    tools/admission_suites.py --mpi openmpi --mechanisms token,rate

The numbers of `BINDING` are so small that packets wait. A row of the table is one suite under one MPI with one mechanism: how
many test files or benchmarks ran, how many tests differ from a run without weir or benchmarks do not complete, how many of these
do so with `FI_WEIR_ADMIT=off` too, how often packets waited and how long, and how many datagrams another rank has sent. The
status is 1 if something differs or does not complete with a mechanism only, or if a mechanism has held nothing back: then its
numbers did not bind, and the run says nothing. Results of mpi4py stay in out/mpi4py, so the same command resumes. See
mpi4py_compare.py and imb_hosts.py.
"""

import argparse
import sys
import types

import imb
import imb_hosts
import launch
import mpi4py_compare
import netns

# With two ranks on a host few datagrams are under way. So these bind, and no suite needs more than a few times as long.
BINDING = {
    "token": ["FI_WEIR_ADMIT=token", "FI_WEIR_ADMIT_TOKENS=4"],
    "rate": ["FI_WEIR_ADMIT=rate", "FI_WEIR_ADMIT_DELAY_NS=20000"],
    "proxy": ["FI_WEIR_ADMIT=proxy"],
    "proxy,token": ["FI_WEIR_ADMIT=proxy,token", "FI_WEIR_ADMIT_TOKENS=4"],
    "auto": ["FI_WEIR_ADMIT=auto", "FI_WEIR_ADMIT_THRESHOLDS=udp:0:1:4,ofi:0:1:4"],
}
SUITES = ["mpi4py", "imb"]
OFF = ["FI_WEIR_ADMIT=off"]
HEADS = ["suite", "MPI", "mechanism", "files or benchmarks", "differ or incomplete", "with off too", "waits", "waited s", "queued",
         "sent by others"]


def mpi4py(mpi, settings, options):
    """Returns the number of files, the tests that differ, those of them that differ with `off` too, and what each file's run has
    held back."""
    def compared(settings, names):
        way = mpi4py_compare.Way(mpi, options.ranks, "demand", options.hosts, options.link, tuple(settings))
        found, _ = mpi4py_compare.compare(way, names, options.timeout, "weir")
        records = [mpi4py_compare.outcomes(way, "weir", name, options.timeout) for name in names]  # kept by the comparison
        return set(found), [record["held_back"] for record in records if record["held_back"]]

    names = mpi4py_compare.test_files(mpi, options.only or ["test_"])
    found, held_back = compared(settings, names)
    again = [name for name in names if any(test.startswith(name.removesuffix("py")) for test in found)]
    without, _ = compared(OFF, again) if again else (set(), [])
    return len(names), len(found), len(found & without), held_back


def intel(mpi, settings, options):
    """The same for Intel's benchmarks, without runs over the MPI's own network."""
    of_imb = types.SimpleNamespace(hosts=options.hosts, link=options.link, set=settings, collectives="off", msglog=options.msglog,
                                   iterations=str(options.iterations), time="60", timeout=options.timeout, rounds=1, alone=True)
    print(f"\n{mpi}, {options.ranks} ranks on {options.hosts} hosts, {options.link}, {', '.join(settings)}", flush=True)
    count, incomplete, without, held_back = 0, 0, 0, []
    for name in options.programs.split(","):
        for benchmark in imb_hosts.PROGRAMS[name]:
            if options.only is None or any(part in benchmark for part in options.only):
                count += 1
                if not imb_hosts.compare((mpi, options.ranks), name, benchmark, of_imb, held_back):
                    incomplete += 1
                    of_off = types.SimpleNamespace(**{**vars(of_imb), "set": OFF})
                    without += not imb_hosts.compare((mpi, options.ranks), name, benchmark, of_off, [])
    return count, incomplete, without, held_back


def row(suite, mpi, mechanism, options):
    """Runs a suite. Returns its row of the table, and whether all is well and something was held back."""
    run = mpi4py if suite == "mpi4py" else intel
    count, bad, without, held_back = run(mpi, BINDING[mechanism], options)
    sums = {name: sum(one[name] for one in held_back) for name in launch.HELD_BACK}
    bound = sums["proxy_sent_for_others"] > 0 if mechanism == "proxy" else sums["gate_waits"] > 0
    cells = [suite, mpi, mechanism, count, bad, without, sums["gate_waits"], round(sums["gate_waited_ns"] / 1e9, 1), sums["proxy_queued"],
             sums["proxy_sent_for_others"]]
    line = "| " + " | ".join(f"{cell:,}" if isinstance(cell, (int, float)) else cell for cell in cells) + " |"
    if not bound:
        line += " nothing was held back"
    print(line, flush=True)
    return line, bad == without and bound


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", default=",".join(SUITES), help="suites, separated by commas (default: %(default)s)")
    parser.add_argument("--mpi", default=",".join(imb.MPIS), help="MPIs, separated by commas (default: %(default)s)")
    parser.add_argument("--mechanisms", default="token;rate;proxy;proxy,token",
                        help=f"mechanisms, separated by semicolons; allowed: {'; '.join(BINDING)} (default: %(default)s)")
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=4, help="number of ranks (default: %(default)s)")
    parser.add_argument("--link", choices=mpi4py_compare.LINKS, default="udp", help="weir's link between hosts (default: %(default)s)")
    parser.add_argument("--only", action="append", metavar="PART", help="only files or benchmarks whose name contains PART")
    parser.add_argument("--programs", default="IMB-MPI1,IMB-RMA,IMB-NBC", help="programs of Intel (default: %(default)s)")
    parser.add_argument("--msglog", default="0:14", help="least and greatest exponent of a size of Intel's (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=5, help="repetitions of a size of Intel's (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=300, help="time limit of a file or benchmark in seconds (default: %(default)s)")
    options = parser.parse_args()
    chosen = {"--suites": (options.suites.split(","), SUITES), "--mpi": (options.mpi.split(","), imb.MPIS),
              "--mechanisms": (options.mechanisms.split(";"), list(BINDING)),
              "--programs": (options.programs.split(","), list(imb_hosts.PROGRAMS))}
    for name, (words, allowed) in chosen.items():
        if unknown := [word for word in words if word not in allowed]:
            parser.error(f"{name} {unknown[0]}; allowed: {' '.join(allowed)}")
    suites, mpis, mechanisms, programs = (words for words, _ in chosen.values())
    if reason := netns.reason_not_possible():
        raise SystemExit(reason)
    launch.require(launch.PROVIDER, launch.WEIR, *map(launch.python, mpis), *map(launch.imb, programs))
    if "mpi4py" in suites:
        mpi4py_compare.fetch_suite()
    rows = [row(suite, mpi, mechanism, options) for mpi in mpis for mechanism in mechanisms for suite in suites]
    print("\n| " + " | ".join(HEADS) + " |\n" + "|---" * len(HEADS) + "|")
    print("\n".join(line for line, _ in rows))
    return 0 if all(good for _, good in rows) else 1


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main())
