#!/usr/bin/env python3
"""Faults of hosts and of the network between them, while MPI programs that check every byte run across pretended hosts.

    tools/faults.py --list                       # each fault once; a table of what was injected, and what was lost
    tools/faults.py --list --only loss --mpi openmpi --link ofi:tcp
    tools/faults.py --hours 1                    # an hour of mixed faults; the same counts at the end
    tools/faults.py --seconds 60 --seed 7        # the same faults in the same order as another run with this seed

After most faults a job has to continue: it ends with all data correct and no message lost. After the others a rank or a host has
died, or is cut off for good: then all ranks on the other hosts must have an error within the limit. Nothing may hang, and memory
of every rank is bounded. The ranks count what they check in files, so all numbers here are measured. Needs root,
`make build env-mpich`, and Debian's strace. What does not go as it must gives status 1.
"""

import argparse
import collections
import json
import pathlib
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field

import checked
import fault_kinds
import launch
import netns
from checked import Counts
from fault_kinds import LIMIT_SECONDS, Place

# An error comes at the latest half a second after the limit, over a core provider a tenth of the limit more. Time in which a rank
# waits for a core does not count for it: that is measured, and added. The allowance is for the programs and this tool.
ERROR_SECONDS = LIMIT_SECONDS + 0.5
ALLOWANCE_SECONDS = 2.5
# A rank that checks no message for so long after a fault hangs. The job ends within this time after it was asked to.
HANG_SECONDS = 60
# Most memory of a rank of the programs here, code and buffers of the MPI included. Unit: MiB.
MEMORY_MIB = 400
PORTS = "20100-20100"
# With the first limit, a rank of MPICH or Intel MPI has no descriptor left for a socket of weir; with the second one, for a segment.
TOO_FEW_DESCRIPTORS = (12, 18)
OLD_PACKETS = launch.ROOT / "tools" / "old_packets.py"
# Why an endpoint drops a packet of an earlier life (`docs/reference/json.md`). What was sent again and comes twice is not one.
REFUSED = ("dropped_stale", "dropped_malformed", "dropped_foreign", "dropped_forged", "dropped_in_kernel")


@dataclass
class Result:
    """What came of an episode, measured. `seconds`: to the last error, or until all ranks checked messages again; `without_core`:
    how long the rank that waited most for a core did so before its error."""

    injected: collections.Counter = field(default_factory=collections.Counter)
    expected: str = "continues"
    happened: str = ""
    seconds: float = 0.0
    without_core: float = 0.0
    counts: Counts = field(default_factory=Counts)
    lost: int | None = None  # after a rank has died nobody knows
    hangs: int = 0
    memory_mib: float = 0.0
    problems: list = field(default_factory=list)

    @property
    def ok(self):
        return not self.problems

    def record(self):
        """For machines."""
        return {**vars(self), "injected": dict(self.injected), "counts": vars(self.counts), "ok": self.ok}

    def look_at_memory(self, job):
        for process in sum(job.processes().values(), []):
            try:
                lines = pathlib.Path(f"/proc/{process}/status").read_text().splitlines()
            except OSError:
                continue  # it has ended
            self.memory_mib = max([self.memory_mib, *(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))])

    def conclude(self, job):
        """Adds what the ranks have counted, and what is wrong with that."""
        self.counts = job.total()
        if self.counts.wrong_bytes or self.counts.failures:
            self.problems.append(f"{self.counts.wrong_bytes} wrong bytes in {self.counts.failures} messages")
        if self.memory_mib > MEMORY_MIB:
            self.problems.append(f"a rank has {self.memory_mib:.0f} MiB; at most {MEMORY_MIB} are allowed")
        if self.hangs:
            self.problems.append(f"{self.hangs} ranks hang")


@dataclass
class World:
    """Hosts, and how jobs run across them."""

    hosts: netns.Hosts
    mpi: str = "mpich"
    link: str = "udp"
    flip: bool = False

    @property
    def protocol(self):
        return "udp" if self.link == "udp" else "tcp"

    @property
    def error_seconds(self):
        return ERROR_SECONDS + ALLOWANCE_SECONDS + (0 if self.link == "udp" else LIMIT_SECONDS / 10)

    def job(self, ranks, program, kind=checked.Job, **rest):
        return kind(self.hosts, ranks, program, mpi=self.mpi, link=self.link, limit_seconds=LIMIT_SECONDS, flip=1 if self.flip else None, **rest)


def waits_for_cores(job):
    """How long each process of a job has waited for a core: {process: seconds}."""
    found = {}
    for process in sum(job.processes().values(), []):
        try:
            # Source: the kernel's documentation of schedstat. The second number is the time on a queue, in ns.
            found[process] = int(pathlib.Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
        except OSError:
            continue  # it has ended
    return found


def continues(result, job):
    """Waits until all ranks check messages again."""
    begun, waits_before = time.monotonic(), waits_for_cores(job)
    silent = job.silent_since(job.counts(), HANG_SECONDS)
    if silent and not job.outcome:
        result.hangs = len(silent)
        result.problems.append(f"after the fault ranks {silent} checked no message for {HANG_SECONDS} s")
    result.seconds = max(result.seconds, time.monotonic() - begun)
    waits = waits_for_cores(job)
    result.without_core = max([result.without_core, *(waits[process] - waits_before.get(process, 0) for process in waits)])


def ends_well(result, job):
    """Asks `stress` to end, and looks whether it does with all data correct and no message lost."""
    job.stop()
    result.hangs = max(result.hangs, job.join(0 if result.hangs else HANG_SECONDS))
    result.conclude(job)
    if job.outcome and not job.outcome.ok:
        result.happened = f"ended with status {job.outcome.status}"
        result.problems.append(str(job.outcome))
    elif job.outcome and job.outcome.leftovers:
        result.problems.append(f"processes were left: {job.outcome.leftovers}")
    if not job.outcome and not result.hangs:
        result.problems.append("all ranks have ended, but the launcher does not")
    if job.outcome and job.outcome.ok:
        result.lost = result.counts.sent - result.counts.checked
        if result.lost or result.counts.ended != job.ranks:
            result.problems.append(f"{result.lost} messages lost; {result.counts.ended} of {job.ranks} ranks came to their end")
    result.happened = result.happened or ("hangs" if result.hangs else "continued")


def survive(world, faults, chance, *, ranks=None):
    """Runs the stress program on all hosts while the faults come, one after the other."""
    result = Result()
    with world.job(ranks or world.hosts.count, "stress", seed=chance.randint(1, 1 << 30)) as job:
        if not job.starts():
            result.hangs = 0 if job.outcome else job.ranks
        for fault in faults:
            if job.outcome or result.problems or result.hangs:
                break
            injected = fault(Place(world.hosts, chance.choice(world.hosts.names), chance, world.protocol, job))
            if not sum(injected.values()):
                result.problems.append(f"{fault.__name__}: nothing was injected")
            result.injected.update(injected)
            continues(result, job)
            result.look_at_memory(job)
        ends_well(result, job)
    return result


def die(world, fault, chance):
    """Endless traffic, one rank on each host, until the ranks of one host die or are cut off."""
    limit = world.error_seconds
    result = Result(expected=f"error in {limit:.1f} s")
    with world.job(world.hosts.count, "traffic") as job:
        if not job.starts():
            result.problems.append(f"the program does not run: {job.outcome}")
            return result
        time.sleep(chance.uniform(0.3, 2))
        result.look_at_memory(job)
        job.freeze_launcher()
        victim = chance.randrange(world.hosts.count)
        begun = time.monotonic()
        heal = fault(Place(world.hosts, world.hosts.names[victim], chance, world.protocol, job))
        others = [rank for rank in range(job.ranks) if rank != victim or fault in fault_kinds.SPARES_THE_HOST]
        try:
            silent, waits_before = others, waits_for_cores(job)
            while silent and result.seconds <= limit + result.without_core and result.seconds < HANG_SECONDS:
                time.sleep(0.05)
                waits, errors = waits_for_cores(job), job.errors()
                result.without_core = max([result.without_core, *(waits[process] - waits_before.get(process, 0) for process in waits)])
                silent = [rank for rank in others if rank not in errors]
                result.seconds = time.monotonic() - begun
        finally:
            result.injected.update(heal())
        result.hangs = len(silent)
        result.happened = f"error at {len(others) - len(silent)} of {len(others)}"
        if not sum(result.injected.values()):
            result.problems.append(f"{fault.__name__}: nothing was injected")
        result.conclude(job)
    return result


class ReportedJob(checked.Job):
    """A job of `weir run`, which writes a report."""

    def _command(self, mpi, program):
        (self.directory / "hostfile").write_text("\n".join(self.hosts.names) + "\n")
        self.report = self.directory / "report.json"
        flags = [word for name, value in self.settings.items() if name.startswith("FI_WEIR_") for word in ("--set", f"{name}={value}")]
        words = [launch.WEIR, "run", "-n", self.ranks, "--mpi", launch.mpiexec(mpi), "--hosts", self.directory / "hostfile", *flags,
                 "--json", self.report, "--", *program]
        return self.hosts.words(netns.LOGIN, words), self.hosts.login_environment()


def old_packets(world, *words):
    """Starts to record or to replay packets."""
    words = world.hosts.words(netns.LOGIN, [sys.executable, OLD_PACKETS, *words])
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if process.stdout.readline() != "ready\n":
        raise RuntimeError("old_packets.py does not start")
    return process


def host_rebooted(world, chance):
    """A host is deleted and begins again with its address and its ports. The packets that went to it come once more while the next
    job runs: its endpoints must refuse them."""
    hosts, settings, name = world.hosts, {"FI_WEIR_PORTS": PORTS}, chance.choice(world.hosts.names)
    port, file = f"v{hosts.number(name)}", hosts.state / "old-packets"
    with world.job(hosts.count, "traffic", settings=settings) as job:
        if not job.starts():
            return Result(problems=[f"the program does not run: {job.outcome}"])
        recorder = old_packets(world, "record", port, world.protocol, file, f"{netns.NETWORK}.{hosts.number(name)}")
        time.sleep(chance.uniform(1, 2))
        recorded, _ = recorder.communicate()
        hosts.kill(name)
    hosts.boot(name)
    mac = hosts.enter(name, "ip -br link show eth0").stdout.split()[2]
    result = Result(injected=collections.Counter({"host rebooted": 1}))
    with world.job(hosts.count, "stress", kind=ReportedJob, seed=chance.randint(1, 1 << 30), settings=settings) as job:
        if not job.starts():
            result.problems.append(f"the program does not run: {job.outcome}")
        replayed = old_packets(world, "replay", port, world.protocol, file, mac, 200)
        time.sleep(2)
        result.look_at_memory(job)
        sent, _ = replayed.communicate()
        result.injected["old packets"] = int(sent)
        continues(result, job)
        ends_well(result, job)
        if not int(sent):
            result.problems.append(f"no old packet was sent; {recorded.strip()} were recorded")
        if world.link == "udp" and job.outcome and job.outcome.ok:
            network = launch.read_report(job.report)["total"]["network"]
            refused = sum(network[reason] for reason in REFUSED)
            result.happened += f", {refused} refused"
            if refused < int(sent):
                result.problems.append(f"of {sent.strip()} old packets {refused} were refused: {network}")
    return result


class LimitedJob(checked.Job):
    """A job whose ranks may have so many files and sockets open."""

    def __init__(self, *arguments, descriptors, **rest):
        self.descriptors = descriptors
        super().__init__(*arguments, **rest)

    def _arguments(self, *rest):
        return ["sh", "-c", f'ulimit -n {self.descriptors} && exec "$0" "$@"', *super()._arguments(*rest)]


def too_few_descriptors(world, chance):
    """Jobs begin whose ranks have no descriptor for a socket, or none for a segment. Each ends with an error that names the limit."""
    result = Result(expected="error names limit")
    for limit in TOO_FEW_DESCRIPTORS:
        begun = time.monotonic()
        with world.job(world.hosts.count, "stress", kind=LimitedJob, seed=chance.randint(1, 1 << 30), descriptors=limit) as job:
            result.hangs += job.join(HANG_SECONDS)
            result.seconds = max(result.seconds, time.monotonic() - begun)
            result.conclude(job)
        result.injected[f"job with {limit} descriptors"] += 1
        if job.outcome.ok or f"(ulimit -n is {limit})" not in job.outcome.output or job.outcome.leftovers:
            result.problems.append(f"no error names the limit of {limit}: {job.outcome}")
    result.happened = "hangs" if result.hangs else f"{len(TOO_FEW_DESCRIPTORS) - len(result.problems)} errors name it"
    return result


# The faults of the list, by the names that the table has.
ROWS = {
    "namespace deleted": fault_kinds.host_deleted,
    "interface down and up": fault_kinds.interface_down,
    "process killed": fault_kinds.process_killed,
    "process stopped and continued": fault_kinds.process_stopped_for_longer_than_the_limit,
    "host rebooted, same address": host_rebooted,
    "asymmetric loss, for a moment": fault_kinds.asymmetric_loss,
    "asymmetric loss that stays": fault_kinds.closed_in_one_direction,
    "path MTU that shrinks": fault_kinds.mtu_shrinks,
    "ENOBUFS": fault_kinds.send_buffers_exhausted,
    "descriptors exhausted": fault_kinds.descriptors_exhausted,
    "too few descriptors at start": too_few_descriptors,
    "loss of 1 %": fault_kinds.loss_of_1_percent,
    "loss of 10 %": fault_kinds.loss_of_10_percent,
    "duplication": fault_kinds.duplication,
    "reordering": fault_kinds.reordering,
    "corruption": fault_kinds.corruption,
}


def run_row(world, name, seed):
    """Injects the fault of a row once."""
    fault, chance = ROWS[name], random.Random(f"{name} {seed}")
    if fault in (host_rebooted, too_few_descriptors):
        return fault(world, chance)
    if fault in fault_kinds.DEADLY:
        return die(world, fault, chance)
    return survive(world, [fault], chance)


def selected(only, link, mpi):
    """The rows of the list whose names contain one of the words, and that there are for this link and this MPI."""
    rows = [name for name in ROWS if not only or any(word in name for word in only)]
    impossible = [] if link == "udp" else [fault_kinds.send_buffers_exhausted, too_few_descriptors]
    # Open MPI takes another transport when weir does not start, and libfabric does not say why a core provider does not.
    impossible += [too_few_descriptors] if mpi == "openmpi" else []
    return [name for name in rows if ROWS[name] not in impossible]


def described(injected):
    return ", ".join(f"{times} {name}" for name, times in injected.items()) or "nothing"


# Times in seconds: `after` the fault, and `no core`, for how long a rank waited for a core of this machine in that time.
FORM = "{:30} {:34} {:14} {:26} {:>6} {:>7} {:>8} {:>5} {:>5} {:>5}  {}"


def run_list(world, rows, seed, note):
    """Runs the rows one after the other. Returns {name: result}."""
    note(FORM.format("fault", "injected", "expected", "happened", "after", "no core", "messages", "lost", "wrong", "hangs", ""))
    results = {}
    for name in rows:
        result = results[name] = run_row(world, name, seed)
        lost = "-" if result.lost is None else result.lost
        note(FORM.format(name, described(result.injected), result.expected, result.happened, f"{result.seconds:.1f}",
                         f"{result.without_core:.1f}", result.counts.checked, lost, result.counts.wrong_bytes, result.hangs,
                         "ok" if result.ok else "FAILED"))
        for problem in result.problems:
            note(f"    {problem}")
    return results


def run_mixed(world, seconds, seed, note=print, least=0):
    """Episodes of both kinds for `seconds`, and at least so many, until the first one that fails. Returns them all."""
    chance, results, begun = random.Random(seed), [], time.monotonic()
    survived = fault_kinds.possible(fault_kinds.SURVIVED, world.link)
    while (time.monotonic() - begun < seconds or len(results) < least) and all(result.ok for result in results):
        if len(results) % 2 == 0:
            faults = chance.choices(survived, k=chance.randint(2, 5))
            results.append(survive(world, faults, chance, ranks=world.hosts.count * chance.randint(1, 2)))
        else:
            faults = [chance.choice([*fault_kinds.DEADLY, host_rebooted])]
            results.append(host_rebooted(world, chance) if faults == [host_rebooted] else die(world, faults[0], chance))
        names = ", ".join(fault.__name__.replace("_", " ") for fault in faults)
        note(f"{time.monotonic() - begun:7.1f} s  {names}: {results[-1].happened} after {results[-1].seconds:.1f} s")
        for problem in results[-1].problems:
            note(f"    {problem}")
    return results


def summary(results, note):
    """Prints what was injected in all, and what was lost."""
    injected, counts = sum((result.injected for result in results), collections.Counter()), Counts()
    for result in results:
        counts += result.counts
    for name, times in sorted(injected.items()):
        note(f"{name:28} {times}")
    errors = [result.seconds for result in results if result.expected.startswith("error")]
    note(f"{'slowest error':28} {max(errors, default=0):.1f} s")
    note(f"{'most memory of a rank':28} {max((result.memory_mib for result in results), default=0):.0f} MiB (allowed: {MEMORY_MIB} MiB)")
    note(f"{'checked':28} {counts.checked} messages, {counts.bytes} bytes")
    lost = sum(result.lost or 0 for result in results)
    hangs = sum(result.hangs for result in results)
    note(f"{'lost, without dead ranks':28} {lost} messages, {counts.wrong_bytes} wrong bytes, {hangs} hangs")
    note(f"{'not as they must be':28} {sum(not result.ok for result in results)} of {len(results)}")


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--list", action="store_true", help="each fault once")
    length.add_argument("--hours", type=float, help="how long mixed faults come")
    length.add_argument("--seconds", type=float, default=60, help="how long mixed faults come (default: %(default)s)")
    parser.add_argument("--only", action="append", metavar="WORD", help="with --list: rows whose name contains this; repeatable")
    parser.add_argument("--json", action="store_true", help="with --list: results for machines on standard output")
    parser.add_argument("--seed", type=int, default=None, help="seed of the faults (default: a new one)")
    parser.add_argument("--hosts", type=int, default=3, help="number of hosts (default: %(default)s)")
    parser.add_argument("--mpi", choices=["mpich", "intel", "openmpi"], default="mpich", help="the MPI (default: %(default)s)")
    parser.add_argument("--link", choices=["udp", "ofi:tcp"], default="udp", help="weir's link between hosts (default: %(default)s)")
    # For the test of this tool: rank 0 changes a byte of a message at the end, so a row must fail.
    parser.add_argument("--flip", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = read_options()
    if reason := netns.reason_not_possible():
        raise SystemExit(reason)
    launch.require(launch.PROVIDER, launch.WEIR, launch.env_dir("mpich"), launch.env_dir(options.mpi))
    rows = selected(options.only, options.link, options.mpi)
    if options.list and not rows:
        raise SystemExit(f"no fault has such a name; there are: {', '.join(ROWS)}")
    if options.list and "ENOBUFS" in rows and not shutil.which("strace"):
        raise SystemExit("strace injects ENOBUFS: apt-get install strace")
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    note = lambda line: print(line, file=sys.stderr if options.json else sys.stdout, flush=True)  # noqa: E731
    note(f"seed {seed}, {options.mpi}, {options.link}, {options.hosts} hosts; a silent peer is lost after {LIMIT_SECONDS} s")
    with netns.Hosts(options.hosts, launcher_network=True) as hosts:
        world = World(hosts, options.mpi, options.link, options.flip)
        if options.list:
            found = run_list(world, rows, seed, note)
            results = list(found.values())
            if options.json:
                print(json.dumps({"seed": seed, "mpi": options.mpi, "link": options.link,
                                  "rows": {name: result.record() for name, result in found.items()}}, indent=1))
        else:
            results = run_mixed(world, options.hours * 3600 if options.hours else options.seconds, seed, note)
    summary(results, note)
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main())
