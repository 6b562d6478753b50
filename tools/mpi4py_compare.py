#!/usr/bin/env python3
"""Runs mpi4py's test suite with and without weir and prints the tests that differ.

A difference is a test that passes on all ranks without weir, and fails, crashes or hangs with weir. Each test file is a
run with its own time limit. Results stay in out/mpi4py, so that the same command resumes an interrupted comparison.
Results without weir stay for good, results with weir until the provider changes. If all tests of a file pass on all
ranks with weir, there is no run without weir. Each line shows times, processor time and messages of a rank. With
several numbers of ranks the last lines compare them.

    tools/mpi4py_compare.py --hosts 2 --ranks 4 --mpi openmpi --link ofi:tcp

With `--hosts` the ranks are on so many pretended hosts (netns.py), and without weir the MPI uses its own network: `tcp` of
libfabric, or that of Open MPI. Then messages are not counted. `held` are messages that senders kept because a receiver had
reached its envelope budget (`--set FI_WEIR_ENVELOPE_BUDGET=4096`). `--collectives on` lets the ranks do collective operations by
groups, and to ask for no more than MPI_THREAD_SERIALIZED, as groups across hosts require. The last line says how many they did.
With `--hosts` and `--set FI_WEIR_ADMIT=...` the last line says what admission has held back. Choose numbers that hold something back:

    tools/mpi4py_compare.py --hosts 2 --ranks 4 --mpi mpich --set FI_WEIR_ADMIT=auto --set FI_WEIR_ADMIT_THRESHOLDS=udp:0:1:2
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass

import launch
import netns

WORK = launch.OUT / "mpi4py"
SUITE = WORK / "mpi4py-4.1.2"
RANK_SCRIPT = launch.ROOT / "tests" / "mpi" / "mpi4py_rank.py"
PASSED = {"ok", "skipped", "expected"}

# Test files of each MPI: all under MPICH and Intel MPI, point-to-point and collectives under Open MPI. Across hosts all.
FILES = {"mpich": "test_", "intel": "test_", "openmpi": r"test_p2p_ test_cco_ test_msg test_request test_pack.py test_util_pkl5".split()}
LINKS = ["udp", "ofi:tcp"]
QUICK = ["test_p2p_buf.py", "test_p2p_obj_matched.py", "test_cco_buf.py", "test_cco_nb_buf.py", "test_request.py"]


def fetch_suite():
    """Downloads the suite from PyPI's source distribution, and checks the pinned hash."""
    if SUITE.is_dir():
        return
    WORK.mkdir(parents=True, exist_ok=True)
    print("fetching mpi4py's source distribution from PyPI", flush=True)
    pip = [launch.python("mpich"), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "mpi4py"]
    requirement = launch.ROOT / "tools" / "mpi4py-sdist.txt"
    subprocess.run([*pip, "--require-hashes", "-r", requirement, "-d", WORK], check=True)
    with tarfile.open(WORK / "mpi4py-4.1.2.tar.gz") as archive:
        archive.extractall(WORK, filter="data")


def test_files(mpi, only):
    wanted = only or FILES[mpi]
    wanted = [wanted] if isinstance(wanted, str) else wanted
    names = sorted(path.name for path in (SUITE / "test").glob("test_*.py"))
    return [name for name in names if any(part in name for part in wanted)]


@dataclass(frozen=True)
class Way:
    """How the suite runs. `hosts`: pretended hosts, 0 for this machine; `link`: what weir uses between them; `settings`: further
    variables of the ranks with weir, NAME=VALUE; `collectives`: `on`, `off`, or None for the default of `weir run`."""

    mpi: str
    ranks: int
    flow: str
    hosts: int
    link: str
    settings: tuple = ()
    collectives: str | None = None

    def folder(self, transport):
        scheme = f"-{self.flow}" if transport == "weir" else ""
        link = f"-{self.link.replace(':', '-')}" if transport == "weir" else ""
        settings = "".join(f"-{pair.replace('/', '%')}" for pair in self.settings if transport == "weir")
        place = f"-{self.hosts}-hosts{link}" if self.hosts else ""
        groups = f"-collectives-{self.collectives}" if transport == "weir" and self.collectives else ""
        return WORK / "results" / f"{self.mpi}-{transport}{scheme}-{self.ranks}{place}{groups}{settings}"

    def variables(self):
        groups = {}
        if self.collectives == "on":
            groups = {"MPI4PY_TEST_THREAD_LEVEL": "serialized", **(netns.with_collectives(True) if self.hosts else {})}
        return groups | dict(pair.split("=", 1) for pair in self.settings)

    @property
    def admits(self):
        return bool(self.hosts) and any(pair.startswith("FI_WEIR_ADMIT=") for pair in self.settings)

    def describe(self, transport):
        scheme = f", {self.flow}" if transport == "weir" else ""
        place = f" across {self.hosts} hosts" if self.hosts else ""
        over = f" over {self.link}" if self.hosts and transport == "weir" else ""
        settings = "".join(f", {pair}" for pair in self.settings if transport == "weir")
        if transport == "weir" and self.collectives:
            settings += f", collectives {self.collectives}"
        return f"{self.mpi}, {self.ranks} rank{'s' * (self.ranks > 1)}{place}", f"{transport}{over}{scheme}{settings}"


def stamp_of(transport):
    """What results depend on."""
    if transport != "weir":
        return "plain"
    return hashlib.sha256(launch.PROVIDER.read_bytes() + launch.COLLECTIVES.read_bytes()).hexdigest()


def command(way, transport, prefix, name):
    """Command and environment of one test file on this machine."""
    program = [launch.python(way.mpi), RANK_SCRIPT, SUITE, prefix, name]
    if transport == "weir":
        flags = ["--quiet", "--flow", way.flow, *(["--collectives", way.collectives] if way.collectives else [])]
        return launch.weir_run(way.ranks, program, mpi=way.mpi, flags=flags, report=report_of(prefix)), way.variables()
    env = launch.plain_environment(way.mpi)
    if transport == "tcp":
        env |= {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1", "FI_PROVIDER": "tcp"}
    return [*launch.plain_mpiexec(way.mpi, way.ranks), *program], env


def run(way, transport, prefix, name, limit):
    """Runs one test file. Hosts are new for each, so nothing that a hang leaves meets the next one."""
    if not way.hosts:
        words, env = command(way, transport, prefix, name)
        return launch.run(words, timeout=limit, env=env | {"PYTHONDONTWRITEBYTECODE": "1"})
    counters = {"FI_WEIR_STATS": str(counters_of(prefix))} if way.admits else {}
    program = ["env", "PYTHONDONTWRITEBYTECODE=1", launch.python(way.mpi), RANK_SCRIPT, SUITE, prefix, name]
    where = {
        "weir": {"settings": {"FI_WEIR_LINK": f"shm,{way.link}", "FI_WEIR_FLOW": way.flow,
                              **counters, **way.variables()}},
        "tcp": {"environment": netns.over_tcp(way.mpi)},
        "own": {"environment": netns.own_network(way.mpi)},
    }[transport]
    with netns.Hosts(way.hosts) as hosts:
        words, env = hosts.mpiexec(way.mpi, way.ranks, program, **where)
        return launch.run(words, timeout=limit, env=env)


def report_of(prefix):
    return prefix.with_suffix(".report")


def counters_of(prefix):
    """The directory of the counters of endpoints on pretended hosts."""
    return prefix.with_suffix(".counters")


def held_back(way, transport, prefix):
    """What admission has held back, see launch.held_back; None if nobody has counted it."""
    return launch.held_back(counters_of(prefix)) if transport == "weir" and way.admits else None


def counter(prefix, name):
    """A counter of all ranks, from the report of `weir run`; None without a report."""
    try:
        return launch.read_report(report_of(prefix))["total"]["counters"][name]
    except (OSError, ValueError, KeyError):
        return None


def outcomes(way, transport, name, limit):
    """The record of one test file: from an earlier run if its stamp is the same, otherwise from a new run."""
    folder, ranks, stamp = way.folder(transport), way.ranks, stamp_of(transport)
    folder.mkdir(parents=True, exist_ok=True)
    kept, prefix = folder / f"{name}.json", folder / f"{name}.rank"
    if kept.exists():
        record = json.loads(kept.read_text())
        if record["stamp"] == stamp:
            return record
    for old in [*folder.glob(f"{name}.rank.*"), report_of(prefix)]:
        old.unlink(missing_ok=True)
    shutil.rmtree(counters_of(prefix), ignore_errors=True)
    counters_of(prefix).mkdir()
    result = run(way, transport, prefix, name, limit)
    (folder / f"{name}.log").write_text(f"{result}\nwhole output:\n{result.output}")
    tests, performed = {}, 0
    for rank in range(ranks):
        path = pathlib.Path(f"{prefix}.{rank}")
        lines = path.read_text().splitlines() if path.exists() else []
        tests[rank] = dict(line.rsplit("\t", 1) for line in lines if "\t" in line)  # the last outcome of a test counts
        performed += int(tests[rank].pop("operations of groups", 0))
    record = {"stamp": stamp, "status": result.status, "seconds": round(result.seconds, 1),
              "processor_seconds": round(result.processor_seconds, 2), "messages": counter(prefix, "messages_sent"),
              "held": counter(prefix, "held_messages"), "group_operations": performed, "held_back": held_back(way, transport, prefix), "tests": tests}
    shutil.rmtree(counters_of(prefix), ignore_errors=True)
    record = json.loads(json.dumps(record))  # the same form as a record that was read: ranks are strings
    kept.write_text(json.dumps(record))
    return record


def failing(record):
    """Tests that did not pass on some rank: a set of (test, rank, outcome)."""
    return {(test, rank, how) for rank, tests in record["tests"].items() for test, how in tests.items()
            if how not in PASSED}


def differences(before, after):
    """Tests that pass without weir on all their ranks, and not with weir: {test: {rank: outcome}}."""
    unsteady = {test for test, _, _ in failing(before)}
    found = {}
    for rank, tests in before["tests"].items():
        with_weir = after["tests"].get(rank, {})
        for test in tests.keys() - unsteady:
            how = with_weir.get(test, "not reached")
            if how not in PASSED:
                found.setdefault(test, {})[rank] = how
    return found


def is_clean(record, ranks):
    """Whether the program succeeded and all ranks passed the same tests. Then no test can differ."""
    tests = record["tests"]
    return (record["status"] == 0 and len(tests) == ranks and not failing(record)
            and len({len(of_rank) for of_rank in tests.values()}) == 1 and len(tests["0"]) > 1)


def compare(way, names, limit, transport, always=False):
    """Prints one line per test file. `always`: all files run without weir too. Returns the differences, and processor
    seconds and messages of a rank."""
    who, what = way.describe(transport)
    print(f"\n{who}: {len(names)} test files without and with {what}", flush=True)
    print(f"  {'test file':34} {'tests':>6} {'baseline fails':>15} {'differ':>7} {'s':>7} {'s ' + transport:>8} {'CPU s/rank':>11} {'messages/rank':>14} {'held':>9}")
    total, processor, messages, held, performed, held_back_sums = {}, 0.0, 0.0, 0, 0, []
    for name in names:
        after = outcomes(way, transport, name, limit)
        # Without weir a file can take minutes if there are more ranks than cores. So it runs only where it can differ.
        before = after if is_clean(after, way.ranks) and not always else outcomes(way, "own", name, limit)
        found = differences(before, after)
        total |= found
        count = len(before["tests"]["0"]) - 1
        cost = after.get("processor_seconds", float("nan")) / way.ranks
        held_back_sums += [after["held_back"]] if after.get("held_back") else []
        sent, kept, performed = after.get("messages"), after.get("held"), performed + after.get("group_operations", 0)
        processor, messages, held = processor + cost, messages + (sent or 0) / way.ranks, held + (kept or 0)
        sent = "-" if sent is None else f"{sent / way.ranks:,.0f}"
        bad = len({test for test, _, _ in failing(before)}) + (before["status"] is None)
        print(f"  {name:34} {count:6} {bad:15} {len(found):7} {'-' if before is after else before['seconds']:>7} {after['seconds']:8.1f} {cost:11.2f} {sent:>14} {'-' if kept is None else kept:>9}", flush=True)
        for test, ranks_of in sorted(found.items()):
            print(f"    passes without {transport} only: {test} "
                  f"({', '.join(f'rank {rank}: {how}' for rank, how in sorted(ranks_of.items()))})", flush=True)
    print(f"  {'all files':34} {'':46} {processor:11.2f} {messages:14,.0f} {held:9,}", flush=True)
    if way.collectives == "on":
        print(f"  groups did {performed:,} operations", flush=True)
    if held_back_sums:
        print(f"  {launch.describe_held_back(held_back_sums)}", flush=True)
    return total, (processor, messages)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks, separated by commas (default: %(default)s)")
    parser.add_argument("--mpi", default="mpich,intel,openmpi", help="MPIs, separated by commas (default: %(default)s)")
    parser.add_argument("--flow", default="demand", help="schemes, separated by commas (default: %(default)s)")
    parser.add_argument("--only", action="append", metavar="PART", help="run only test files whose name contains PART")
    parser.add_argument("--hosts", type=int, default=0, help="number of pretended hosts (default: this machine alone)")
    parser.add_argument("--link", choices=LINKS, default="udp", help="weir's link between hosts (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable of the ranks over weir")
    parser.add_argument("--collectives", choices=["on", "off"],
                        help="collective operations by groups (default: across hosts off, else as `weir run` does)")
    parser.add_argument("--quick", action="store_true", help="run the subset of `make test`")
    parser.add_argument("--timeout", type=float, default=300, help="time limit of a test file in seconds (default: %(default)s)")
    parser.add_argument("--both", action="store_true", help="run all files without weir too, to compare times")
    parser.add_argument("--fresh", action="store_true", help="delete earlier results")
    parser.add_argument("--against", choices=["weir", "tcp"], default="weir",
                        help="tcp: run libfabric's tcp provider instead of weir, to find failures of the MPI over libfabric")
    options = parser.parse_args()

    mpis = options.mpi.split(",")
    if unknown := [mpi for mpi in mpis if mpi not in FILES]:
        parser.error(f"--mpi {unknown[0]}; allowed: {', '.join(FILES)}")
    if wrong := [pair for pair in options.set if "=" not in pair]:
        parser.error(f"--set {wrong[0]}; allowed: NAME=VALUE")
    if options.hosts and (reason := netns.reason_not_possible()):
        raise SystemExit(reason)
    launch.require(*[launch.python(mpi) for mpi in mpis], *[launch.PROVIDER, launch.WEIR] * (options.against == "weir"))
    fetch_suite()
    if options.fresh:
        for old in (WORK / "results").glob("*/*"):
            old.unlink() if old.is_file() else shutil.rmtree(old)
    total, costs = {}, {}
    for mpi in mpis:
        names = QUICK if options.quick else test_files(mpi, options.only or (["test_"] if options.hosts else None))
        for ranks in map(int, options.ranks.split(",")):
            for flow in options.flow.split(","):
                way = Way(mpi, ranks, flow, options.hosts, options.link, tuple(options.set), options.collectives)
                found, costs[mpi, flow, ranks] = compare(way, names, options.timeout, options.against, options.both)
                total |= {f"{mpi} {ranks} {flow} {test}": how for test, how in found.items()}
    for (mpi, flow, ranks), cost in costs.items():
        fewest = min(count for other, scheme, count in costs if (other, scheme) == (mpi, flow))
        if ranks > fewest:
            seconds, messages = (now / then if then else float("nan") for now, then in zip(cost, costs[mpi, flow, fewest]))
            print(f"{mpi}, {flow}: a rank with {ranks} ranks needs {seconds:.2f} x the processor time and sends {messages:.2f} x the messages of one with {fewest}")
    print(f"\n{len(total)} differences" + ("" if total else f": every test that passes without {options.against} passes with it"))
    return 1 if total else 0


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.exit(main())
