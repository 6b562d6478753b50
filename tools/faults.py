#!/usr/bin/env python3
"""Mixed traffic of real MPI programs across pretended hosts, with faults drawn from a seed.

    tools/faults.py --hours 1                    # an hour; prints what was injected, and what was lost
    tools/faults.py --seconds 60 --seed 7        # the same faults in the same order as another run with this seed

Two kinds of episodes alternate. In the first, the stress program runs, which checks every byte, and faults come that a job
must survive: it has to end with all data correct. In the second, a rank or a host dies: all ranks on the other hosts must have
an error within the limit, and nothing may hang; then the host begins again with the same address. Memory of every rank is
bounded in all of them. Needs root, `make build env-mpich`. The first episode that fails ends the run with status 1.
"""

import argparse
import collections
import os
import pathlib
import random
import resource
import signal
import sys
import tempfile
import threading
import time

import launch
import netns
import stress
import xdp

# A silent peer is lost after so long. Faults that a job must survive are shorter, except those of a process.
LIMIT_SECONDS = 5
# An error comes at the latest so long after its cause: half a second after the limit. Time in which a rank does not get a core
# does not count, so there is room for a busy machine.
ERROR_SECONDS = LIMIT_SECONDS + 3
# Most memory of a rank of the programs here, code and buffers of the MPI included. Unit: MiB.
MEMORY_MIB = 400
TRAFFIC = launch.ROOT / "tests" / "mpi" / "traffic.c"


class Failed(Exception):
    """An episode has ended otherwise than it must."""


def filtered(hosts, name, seconds, **what):
    """A packet filter at the interface of a host. Returns the packets that it has met."""
    filter = xdp.Filter(hosts, name, protocol="udp", **what)
    time.sleep(seconds)
    return filter.end()


def ranks_of(hosts, name):
    return hosts.processes(name, "stress") + hosts.processes(name, "traffic")


def interface_down(hosts, name, random):
    hosts.enter(name, "ip link set eth0 down")
    time.sleep(random.uniform(0.2, LIMIT_SECONDS / 2))
    hosts.enter(name, "ip link set eth0 up")


def process_stopped(hosts, name, random):
    stopped = ranks_of(hosts, name)
    for number, seconds in ((signal.SIGSTOP, random.uniform(0.2, 2 * LIMIT_SECONDS)), (signal.SIGCONT, 0)):
        for process in stopped:
            try:
                os.kill(process, number)
            except ProcessLookupError:
                pass
        time.sleep(seconds)


def loss(hosts, name, random):
    """Up to 10 % of what arrives."""
    return filtered(hosts, name, random.uniform(1, 4), drop=random.randint(1, 100))


def asymmetric_loss(hosts, name, random):
    """Nothing arrives, while what is sent does."""
    return filtered(hosts, name, random.uniform(0.2, LIMIT_SECONDS / 3), drop=1000)


def corruption(hosts, name, random):
    """A byte of one of a hundred datagrams changes."""
    return filtered(hosts, name, random.uniform(1, 4), change=10, at=random.randint(42, 86))


def mtu_shrinks(hosts, name, random):
    """First on the way, where nobody says so, then at the interface."""
    port = f"v{hosts.number(name)}"
    hosts.enter(netns.LOGIN, f"ip link set {port} mtu {random.randint(1300, 1450)}")
    time.sleep(random.uniform(0.5, 2))
    hosts.enter(name, f"ip link set eth0 mtu {random.randint(1300, 1450)}")
    time.sleep(random.uniform(0.5, 2))
    hosts.enter(netns.LOGIN, f"ip link set {port} mtu {hosts.mtu}")
    hosts.enter(name, f"ip link set eth0 mtu {hosts.mtu}")


def descriptors_exhausted(hosts, name, random):
    """The processes can open no file and no socket more."""
    before = {}
    for process in ranks_of(hosts, name):
        try:
            before[process] = resource.prlimit(process, resource.RLIMIT_NOFILE)
            resource.prlimit(process, resource.RLIMIT_NOFILE, (1, before[process][1]))
        except ProcessLookupError:
            pass
    time.sleep(random.uniform(0.5, LIMIT_SECONDS))
    for process, limits in before.items():
        try:
            resource.prlimit(process, resource.RLIMIT_NOFILE, limits)
        except ProcessLookupError:
            pass


def process_killed(hosts, name, random):
    for process in ranks_of(hosts, name):
        os.kill(process, signal.SIGKILL)


def host_deleted(hosts, name, random):
    hosts.kill(name)


# A job must survive these.
SURVIVED = [interface_down, process_stopped, loss, asymmetric_loss, corruption, mtu_shrinks, descriptors_exhausted]
# These end a rank.
DEADLY = [process_killed, host_deleted]


class Memory:
    """The most memory of a rank while `watch` runs. Unit: MiB."""

    def __init__(self):
        self.peak = 0

    def look(self, hosts):
        for name in hosts.names:
            for process in ranks_of(hosts, name):
                try:
                    text = pathlib.Path(f"/proc/{process}/status").read_text()
                except OSError:
                    continue
                for line in text.splitlines():
                    if line.startswith("VmHWM:"):
                        self.peak = max(self.peak, int(line.split()[1]) / 1024)
        if self.peak > MEMORY_MIB:
            raise Failed(f"a rank has {self.peak:.0f} MiB; at most {MEMORY_MIB} are allowed")


class Run:
    """A job in the background. `mark` identifies its processes."""

    def __init__(self, hosts, ranks, program, timeout):
        self.mark, self.outcome = launch.new_mark(), None
        settings = {"FI_WEIR_PEER_TIMEOUT_S": str(LIMIT_SECONDS)}
        words, env = hosts.mpiexec("mpich", ranks, program, settings=settings)
        self.thread = threading.Thread(target=self._run, args=(words, env, timeout))
        self.thread.start()

    def _run(self, words, env, timeout):
        self.outcome = launch.run(words, timeout=timeout, env=env, mark=self.mark)

    def freeze_launcher(self):
        """From now on the launcher ends no rank because another one has ended."""
        for process, line in launch.marked(self.mark):
            if "hydra" in line.split()[0] or "mpiexec" in line.split()[0]:
                os.kill(process, signal.SIGSTOP)

    def kill(self):
        for process, _ in launch.marked(self.mark):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.thread.join()

    def wait_until_it_runs(self, hosts, program, names):
        deadline = time.monotonic() + 30
        while not all(hosts.processes(name, program) for name in names):
            if self.outcome or time.monotonic() > deadline:
                raise Failed(f"{program} does not run: {self.outcome}")
            time.sleep(0.02)


def survive(hosts, faults, random, memory, *, ranks=None, rounds=100000, seconds=None, injected=None):
    """Runs the stress program on all hosts while the faults come, one after the other. `seconds`: at least so long."""
    program = [launch.compile_c(stress.SOURCE), "--seed", random.randint(1, 1 << 30), "--rounds", rounds,
               "--max-bytes", 1 << 18, "--seconds", 4 * len(faults) + (seconds or 0)]
    # The faults, one after the other, each with its longest time; then the job has to end by itself.
    limit = 120 + (seconds or 0) + 3 * LIMIT_SECONDS * len(faults)
    job = Run(hosts, ranks or hosts.count, program, limit)
    try:
        job.wait_until_it_runs(hosts, "stress", hosts.names)
        time.sleep(0.5)
        # The traffic can end with the last fault.
        memory.look(hosts)
        for fault in faults:
            if job.outcome:
                break
            name = random.choice(hosts.names)
            met = fault(hosts, name, random)
            if injected is not None:
                injected[fault.__name__] += 1
                injected["packets dropped or changed"] += met or 0
            memory.look(hosts)
            time.sleep(random.uniform(0, 0.5))
        while not job.outcome:
            memory.look(hosts)
            time.sleep(0.3)
        job.thread.join()
    except BaseException:
        job.kill()
        raise
    if not job.outcome.ok or "all correct" not in job.outcome.output:
        raise Failed(f"after {', '.join(fault.__name__ for fault in faults)}: {job.outcome}")
    if job.outcome.leftovers:
        raise Failed(f"processes were left: {job.outcome.leftovers}")


def die(hosts, fault, random, memory):
    """Endless traffic, one rank on each host, until the ranks of one host die. Returns the seconds to the last error."""
    with tempfile.TemporaryDirectory(prefix="weir-faults-") as directory:
        directory = pathlib.Path(directory)
        (directory / "ranks").mkdir()
        words = f"{launch.compile_c(TRAFFIC)} {directory}/ranks exchange -1 0"
        job = Run(hosts, hosts.count, ["sh", "-c", f"exec {words} > {directory}/out.$PMI_RANK 2>&1"], 60 + ERROR_SECONDS)
        try:
            job.wait_until_it_runs(hosts, "traffic", hosts.names)
            time.sleep(random.uniform(0.3, 2))
            memory.look(hosts)
            job.freeze_launcher()
            victim = random.randrange(hosts.count)
            begun = time.monotonic()
            fault(hosts, hosts.names[victim], random)
            others = [rank for rank in range(hosts.count) if rank != victim]
            while True:
                texts = {rank: (directory / f"out.{rank}").read_text() for rank in others}
                silent = [rank for rank in others if f"rank {rank}: error" not in texts[rank]]
                seconds = time.monotonic() - begun
                if not silent:
                    return seconds
                if seconds > ERROR_SECONDS:
                    raise Failed(f"{fault.__name__}: no error within {ERROR_SECONDS} s at ranks {silent}: {texts}")
                time.sleep(0.05)
        finally:
            job.kill()
            if fault is host_deleted:
                hosts.boot(hosts.names[victim])


def run(seconds, seed, count=3, note=print):
    """Episodes for `seconds`. Returns what was injected."""
    chance, injected, memory = random.Random(seed), collections.Counter(), Memory()
    slowest, begun, episodes = 0.0, time.monotonic(), 0
    with netns.Hosts(count) as hosts:
        while time.monotonic() - begun < seconds:
            episodes += 1
            if episodes % 2:
                faults = chance.choices(SURVIVED, k=chance.randint(2, 5))
                survive(hosts, faults, chance, memory, ranks=count * chance.randint(1, 2), injected=injected)
                done = ", ".join(fault.__name__ for fault in faults)
            else:
                fault = chance.choice(DEADLY)
                took = die(hosts, fault, chance, memory)
                slowest = max(slowest, took)
                injected[fault.__name__] += 1
                if fault is host_deleted:
                    injected["host_restarted"] += 1
                done = f"{fault.__name__}: errors at all others after {took:.1f} s"
            note(f"{time.monotonic() - begun:7.1f} s  {done}")
    for name, times in sorted(injected.items()):
        note(f"{name.replace('_', ' '):28} {times}")
    note(f"{'episodes':28} {episodes}")
    note(f"{'slowest error':28} {slowest:.1f} s (allowed: {ERROR_SECONDS} s)")
    note(f"{'most memory of a rank':28} {memory.peak:.0f} MiB (allowed: {MEMORY_MIB} MiB)")
    note(f"{'lost, without dead ranks':28} 0 messages, 0 wrong bytes, 0 hangs")
    return injected


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=float, help="how long")
    length.add_argument("--seconds", type=float, help="how long (default: 60)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the faults (default: a new one)")
    parser.add_argument("--hosts", type=int, default=3, help="number of hosts (default: %(default)s)")
    options = parser.parse_args()
    if reason := netns.reason_not_possible():
        raise SystemExit(reason)
    launch.require(launch.PROVIDER, launch.env_dir("mpich"))
    seconds = options.hours * 3600 if options.hours else options.seconds or 60
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    try:
        run(seconds, seed, options.hosts, lambda line: print(line, flush=True))
    except Failed as failed:
        print(f"FAILED (seed {seed}): {failed}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main())
