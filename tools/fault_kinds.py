"""The faults that `tools/faults.py` injects. Each does one thing to one pretended host and returns what it has injected, counted.

A job must survive those of `SURVIVED`. Those of `DEADLY` end ranks or cut them off for good; what they return heals the host when
the job has ended, and gives the counts.
"""

import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass

import checked
import netns
import relay

# A silent peer is lost after so long. Faults that a job must survive are shorter, except those of a process.
LIMIT_SECONDS = 5
SEND_CALLS = "sendto,sendmsg,sendmmsg"


@dataclass
class Place:
    """Where a fault comes. `protocol`: what the link between hosts uses, `udp` or `tcp`."""

    hosts: netns.Hosts
    name: str
    random: random.Random
    protocol: str
    job: checked.Job

    def processes(self):
        return self.job.processes()[self.name]


def states(processes):
    """The states of processes, as the kernel names them: one letter each."""
    found = []
    for process in processes:
        try:
            found.append(pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0])
        except OSError:
            found.append("X")
    return found


def send_signal(processes, number):
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass


def relayed(place, least=1, most_seconds=15, **what):
    """A relay until it has done `least` of what it shall, for at most `most_seconds`. With 1, for 1 to 4 seconds at least."""
    wire = relay.Relay(place.hosts, place.name, protocol=place.protocol, seed=place.random.randrange(1 << 30), **what)
    time.sleep(place.random.uniform(1, 4) if least == 1 else 0.3)
    deadline = time.monotonic() + most_seconds
    while sum(done(wire.counts()).values()) < least and time.monotonic() < deadline and not place.job.outcome:
        time.sleep(0.1)
    return done(wire.end())


def done(counts):
    """What a relay has done to frames."""
    names = {"dropped": "frames dropped", "duplicated": "frames duplicated", "reordered": "frames reordered",
             "corrupted": "frames corrupted", "too_long": "frames too long"}
    return {names[key]: value for key, value in counts.items() if key in names and value}


def interface_down(place):
    place.hosts.enter(place.name, "ip link set eth0 down")
    time.sleep(place.random.uniform(0.2, LIMIT_SECONDS / 2))
    was_down = "state DOWN" in place.hosts.enter(place.name, "ip link show eth0").stdout
    place.hosts.enter(place.name, "ip link set eth0 up")
    return {"interface down": int(was_down)}


def process_stopped(place, longest=2 * LIMIT_SECONDS, shortest=0.2):
    processes = place.processes()
    send_signal(processes, signal.SIGSTOP)
    time.sleep(place.random.uniform(shortest, longest))
    stopped = sum(state == "T" for state in states(processes))
    send_signal(processes, signal.SIGCONT)
    return {"process stopped": stopped}


def process_stopped_for_longer_than_the_limit(place):
    return process_stopped(place, LIMIT_SECONDS + 2, LIMIT_SECONDS + 1)


def asymmetric_loss(place):
    """Nothing arrives, while what is sent does."""
    wire = relay.Relay(place.hosts, place.name, toward="host", drop=1000)
    time.sleep(place.random.uniform(0.2, LIMIT_SECONDS / 3))
    return done(wire.end())


def mtu_shrinks(place):
    """First on the way, where nobody says so, then at the interface. It is shorter for TCP, which does not look for a smaller MTU
    by itself and waits twice as long after each loss: with more than three seconds, peers are silent for longer than the limit."""
    longest_seconds = 2 if place.protocol == "udp" else 0.8
    wire = relay.Relay(place.hosts, place.name, longest=place.random.randint(1300, 1450))
    time.sleep(place.random.uniform(0.5, 1) * longest_seconds)
    place.hosts.enter(place.name, f"ip link set eth0 mtu {place.random.randint(1300, 1450)}")
    time.sleep(place.random.uniform(0.3, 1) * longest_seconds)
    place.hosts.enter(place.name, f"ip link set eth0 mtu {place.hosts.mtu}")
    return done(wire.end())


def send_buffers_exhausted(place):
    """Some calls that send fail with ENOBUFS, as from a kernel without memory. The calls are those of UDP."""
    with tempfile.NamedTemporaryFile(prefix="weir-faults-") as log:
        when = f"{place.random.randint(1, 5)}+{place.random.randint(2, 6)}"
        words = ["strace", "-qq", "-f", "-o", log.name, "-e", f"trace={SEND_CALLS}", "-e", "signal=none",
                 "-e", f"inject={SEND_CALLS}:error=ENOBUFS:when={when}"]
        for process in place.processes():
            words += ["-p", str(process)]
        tracer = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        time.sleep(place.random.uniform(1, 2))
        tracer.send_signal(signal.SIGINT)
        tracer.wait()
        return {"calls with ENOBUFS": log.read().count(b"(INJECTED)")}


def descriptors_exhausted(place):
    """The processes can open no file and no socket more."""
    before = {}
    for process in place.processes():
        try:
            before[process] = resource.prlimit(process, resource.RLIMIT_NOFILE)
            resource.prlimit(process, resource.RLIMIT_NOFILE, (1, before[process][1]))
        except ProcessLookupError:
            pass
    time.sleep(place.random.uniform(0.5, LIMIT_SECONDS))
    limited = 0
    for process, limits in before.items():
        try:
            limited += resource.prlimit(process, resource.RLIMIT_NOFILE, limits)[0] == 1
        except ProcessLookupError:
            pass
    return {"process without descriptors": limited}


def loss(place):
    return relayed(place, drop=place.random.randint(1, 100))


def loss_of_1_percent(place):
    return relayed(place, 10, drop=10)


def loss_of_10_percent(place):
    return relayed(place, 50, drop=100)


def duplication(place):
    return relayed(place, 30, duplicate=place.random.randint(20, 100))


def reordering(place):
    return relayed(place, 30, reorder=place.random.randint(20, 100))


def corruption(place):
    """A byte of a frame changes. What arrives of UDP has a checksum that the kernel accepts, so weir has to notice it."""
    return relayed(place, 20, corrupt=place.random.randint(5, 20))


def all_at_once(place):
    """Loss, duplication, reordering and corruption."""
    return relayed(place, 50, drop=20, duplicate=20, reorder=20, corrupt=10)


def process_killed(place):
    processes = place.processes()
    send_signal(processes, signal.SIGKILL)
    return lambda: {"process killed": sum(state in "ZX" for state in states(processes))}


def host_deleted(place):
    processes = place.processes()
    place.hosts.kill(place.name)

    def heal():
        has_cable = place.hosts.enter(netns.LOGIN, f"ip link show v{place.hosts.number(place.name)}", check=False).returncode == 0
        runs = any(state not in "ZX" for state in states(processes))
        place.hosts.boot(place.name)
        return {"namespace deleted": int(not has_cable and not runs)}

    return heal


def closed_in_one_direction(place):
    """Nothing arrives any more, while what is sent does."""
    wire = relay.Relay(place.hosts, place.name, toward="host", drop=1000)
    return lambda: done(wire.end())


SURVIVED = [interface_down, process_stopped, asymmetric_loss, mtu_shrinks, send_buffers_exhausted, descriptors_exhausted, loss,
            duplication, reordering, corruption, all_at_once]
DEADLY = [host_deleted, process_killed, closed_in_one_direction]
# After these all ranks have to report an error, also those of the host itself.
SPARES_THE_HOST = [closed_in_one_direction]


def possible(faults, link):
    """Those of the faults that there are for this link and on this machine."""
    # A socket of TCP has no such error, and a core provider sends by its own calls.
    without = [] if link == "udp" and shutil.which("strace") else [send_buffers_exhausted]
    return [fault for fault in faults if fault not in without]
