#!/usr/bin/env python3
"""How much a stranger's flood of garbage slows real traffic between two hosts.

    tools/garbage.py                     # ratios of times, median of interleaved rounds

A third host sends datagrams of random bytes as fast as it can to the port of an endpoint, in turn with none and with the same
flood to another socket of the same host, which nobody reads. All hosts share the cores of this machine, and the kernel spends
the time of a datagram on the sender's core. So the second ratio, of both floods, is what weir pays for garbage; the first one
also has the cores that the stranger takes. Needs root, `make build env-mpich env-intel`.
"""

import argparse
import collections
import re
import statistics
import subprocess
import sys
import time

import launch
import netns

PORTS = range(20100, 20102)
UNREAD = 20999
# Sends random datagrams to an address until its time is over. Prints their number.
STRANGER = """
import os, socket, sys, time
address, port, seconds, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
garbage = [os.urandom(size) for size in (1, 40, 64, 200, 1472)] + [bytes([2, 0, 1, 0, 1, 0]) + os.urandom(90)]
begun, sent = time.monotonic(), 0
while (now := time.monotonic() - begun) < seconds:
    while sent < now * rate:
        for number in range(12):
            try: socket.sendto(garbage[number % 6], (address, port))
            except OSError: pass
        sent += 12
    time.sleep(0.0005)
print(sent)
"""
READER = """
import socket, time
socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
socket.bind(("0.0.0.0", %d))
print("ready", flush=True)
time.sleep(10000)
""" % UNREAD
Result = collections.namedtuple("Result", "none beside at_port datagrams")


def latency(hosts, seconds):
    """Starts the measuring program. Half a round trip of 8 B between h1 and h2."""
    program = [launch.compile_c(launch.ROOT / "tests" / "mpi" / "measure.c"), "latency", seconds, 8]
    settings = {"FI_WEIR_PORTS": f"{PORTS.start}-{PORTS.stop - 1}", "FI_WEIR_LINK": "udp"}
    words, env = hosts.mpiexec("mpich", 2, program, per_host=1, settings=settings)
    return launch.run(words, timeout=60, env=env)


def measured(hosts, seconds, port, rate):
    """Half a round trip while garbage goes to this port of h1 and h2. Unit: us. Also the number of datagrams."""
    strangers = []
    if port:
        for victim in (1, 2):
            ports = [PORTS.start, PORTS.start + 1] if port == "endpoint" else [UNREAD]
            for number in ports:
                words = ["python3", "-c", STRANGER, f"{netns.NETWORK}.{victim}", number, seconds + 3, rate / 2 / len(ports)]
                strangers.append(subprocess.Popen(hosts.words("h3", words), stdout=subprocess.PIPE, text=True))
    outcome = latency(hosts, seconds)
    sent = sum(int(stranger.communicate()[0]) for stranger in strangers)
    found = re.search(r"\bus=([\d.]+)", outcome.output)
    if not outcome.ok or not found:
        raise SystemExit(f"the measurement failed: {outcome}")
    return float(found[1]), sent


def measure(rounds=7, seconds=1.0, rate=20000):
    """Times with no garbage, with garbage beside the endpoint, and at its port. Unit: us."""
    times = collections.defaultdict(list)
    datagrams = 0
    with netns.Hosts(3) as hosts:
        hosts.count = 2  # the third one is no host of the job
        readers = []
        for name in hosts.names:
            reader = subprocess.Popen(hosts.words(name, ["python3", "-c", READER]), stdout=subprocess.PIPE, text=True)
            reader.stdout.readline()
            readers.append(reader)
        for _ in range(rounds):
            for where in (None, "unread", "endpoint"):
                took, sent = measured(hosts, seconds, where, rate)
                times[where].append(took)
                datagrams += sent if where == "endpoint" else 0
                time.sleep(0.1)
        for reader in readers:
            reader.kill()
            reader.wait()
        hosts.count = 3
    return Result(times[None], times["unread"], times["endpoint"], datagrams)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of three measurements (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of one (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=20000, help="datagrams a second of the stranger (default: %(default)s)")
    options = parser.parse_args()
    if reason := netns.reason_not_possible():
        raise SystemExit(reason)
    launch.require(launch.PROVIDER, launch.env_dir("mpich"))
    result = measure(options.rounds, options.seconds, options.rate)
    median = statistics.median
    ratio = lambda one, other: median(a / b for a, b in zip(one, other))  # noqa: E731
    print(f"half a round trip of 8 B, median of {options.rounds} rounds, {options.rate:.0f} datagrams of garbage a second:")
    print(f"  no garbage                        {median(result.none):8.2f} us")
    print(f"  garbage at a socket nobody reads  {median(result.beside):8.2f} us   {ratio(result.beside, result.none):5.2f} x")
    print(f"  garbage at the endpoints          {median(result.at_port):8.2f} us   {ratio(result.at_port, result.none):5.2f} x")
    paid = ratio(result.at_port, result.beside)
    print(f"  what weir pays for garbage        {'':8}      {paid:5.2f} x (allowed: 1.20)")
    print(f"  datagrams at the endpoints        {result.datagrams}")
    return 0 if paid < 1.2 else 1


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main())
