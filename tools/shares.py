#!/usr/bin/env python3
"""Samples processor time by library with perf: `measure` or any other program over weir, on all cores. Collective operations
are made of messages.

    tools/shares.py --ranks 8 "barrier 1 8"                              # tests/mpi/measure.c
    tools/shares.py --ranks 2 --by-rank "stream 1 8"                     # a row for each process; the first is rank 0, the sender
    tools/shares.py --ranks 8 --program "python3 my_program.py"          # any program

The table shows the share of samples in the program's processes: kernel (system calls and context switches), provider,
MPI library, copies, `sched_yield`, and everything else. Each cell has the median over the runs, the least and the
greatest value. Needs perf. It samples the clock, because virtual machines often have no hardware counters.
"""

import argparse
import collections
import pathlib
import re
import shlex
import statistics
import subprocess
import tempfile

import launch

MEASURE = launch.ROOT / "tests" / "mpi" / "measure.c"
COLUMNS = ("kernel", "provider", "MPI", "copies", "yields", "else")
SAMPLE = re.compile(r"^\s*(\d+)\s+[0-9a-f]+ (.*) \(([^()]*)\)$")


def column(symbol, library):
    name = pathlib.Path(library).name
    if (name.startswith("[") and name != "[vdso]") or name.endswith(".ko"):  # modules have brackets too
        return "kernel"
    if name.startswith("libweir"):
        return "provider"
    if name.startswith("libmpi"):
        return "MPI"
    if name.startswith("libc.") and re.search(r"mem(cpy|move)", symbol):
        return "copies"
    return "yields" if "sched_yield" in symbol else "else"


def shares(words, name):
    """Samples of one run: {process: {column: samples}}."""
    with tempfile.TemporaryDirectory(prefix="weir-shares-") as scratch:
        samples = pathlib.Path(scratch) / "samples"
        outcome = launch.run(["perf", "record", "-q", "-a", "-e", "cpu-clock", "-F", "4000", "-o", samples, "--", *words], timeout=600)
        if not outcome.ok:
            raise SystemExit(f"{words}: {outcome}")
        script = ["perf", "script", "-i", samples, "--comms", name, "-F", "pid,ip,sym,dso"]
        lines = subprocess.run(script, check=True, capture_output=True, text=True).stdout.splitlines()
    found = collections.defaultdict(collections.Counter)
    for process, symbol, library in (match.groups() for match in map(SAMPLE.match, lines) if match):
        found[process][column(symbol, library)] += 1
    if not found:
        raise SystemExit(f"no samples of {name}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measure", nargs="?", type=shlex.split, help="arguments of tests/mpi/measure.c, as one word: measure, seconds, bytes")
    parser.add_argument("--program", type=shlex.split, help="another program with its arguments, as one word")
    parser.add_argument("--ranks", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--by-rank", action="store_true", help="a row for each process, in the order in which they started")
    options = parser.parse_args()
    if (options.measure is None) == (options.program is None):
        parser.error("give either the arguments of measure or --program")
    program = options.program or [launch.compile_c(MEASURE), *options.measure]
    words = launch.weir_run(options.ranks, program, flags=["-q", "--collectives", "off"])
    name = pathlib.Path(program[0]).name[:15]  # the kernel keeps 15 characters of a name
    rows = collections.defaultdict(list)
    for _ in range(options.runs):
        found = shares([str(word) for word in words], name)
        counts = [found[process] for process in sorted(found, key=int)]
        parts = [{column: count[column] / count.total() for column in COLUMNS} for count in counts]
        if options.by_rank:
            for place, part in enumerate(parts):
                rows[f"process {place}"].append(part)
        else:
            total = sum(counts, collections.Counter())
            rows["all ranks"].append({column: total[column] / total.total() for column in COLUMNS})
    print(f"{'':16}" + "".join(f"{column:>20}" for column in COLUMNS))
    for row, parts in rows.items():
        values = [[100 * part[column] for part in parts] for column in COLUMNS]
        print(f"{row:16}" + "".join(f"{statistics.median(value):6.1f} ({min(value):4.1f} .. {max(value):4.1f})" for value in values))
    print(f"shares in %, of the samples of {name}; median (least .. greatest) of {options.runs} runs")


if __name__ == "__main__":
    main()
