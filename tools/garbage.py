#!/usr/bin/env python3
"""How much a stranger's flood of garbage slows real traffic between two hosts.

    tools/garbage.py                     # ratios of times, median of interleaved rounds
    tools/garbage.py --observer          # the stranger has seen datagrams of the job

A third host sends garbage as fast as it may to the port of an endpoint, in turn with none and with the same flood to another
socket of the same host, which nobody reads. All hosts share the cores of this machine, and the kernel spends the time of a
datagram on the sender's core. So the second ratio, of both floods, is what weir pays for garbage; the first one also has the
cores that the stranger takes. The kernel drops garbage that does not have the verification tag of the endpoint. An observer
copies that from a datagram of the job, and then the kinds of garbage (`KINDS`) reach different checks. The last three cost
most: weir checks the seal of an introduction, and that of a datagram whose sender's address is that of a peer. Needs root,
`make build env-mpich`.
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

PORT = 20100
UNREAD = 20999
# The kinds, and the reason for which weir drops those of an observer (`docs/reference/json.md`).
KINDS = {
    "short": "malformed",
    "noise": "malformed",
    "foreign": "foreign",  # a correct extension, from a place where no peer is
    "introduction": "forged",  # as long as one, to an endpoint whose epoch the sender does not know
    "spoofed": "forged",  # it has the source address of the peer, and names the path's epochs
    "epoch": "forged",  # the same, but from another epoch of the peer each time
}
# Sends datagrams to an address until its time is over. Prints a line when it is ready, and their number. Those of the last two
# kinds have the source address `peer`, which needs a raw socket. An observer begins when a line with the tag comes.
STRANGER = """
import os, socket, struct, sys, time
address, port, peer, seconds, rate, observes, version, extension_bytes, introduction_bytes = sys.argv[1:10]
version, extension_bytes, introduction_bytes = int(version), int(extension_bytes), int(introduction_bytes)
kinds, port, seconds, rate = sys.argv[10:], int(port), float(seconds), float(rate)
print("ready", flush=True)
verification = bytes.fromhex(sys.stdin.readline()) if observes == "True" else os.urandom(4)

def datagram(destination_epoch, length, version=version, epoch=1):
    head = struct.pack("<BBHHH", version, 0, epoch, destination_epoch, 0) + verification
    return head + os.urandom(length - len(head))

def spoofed(payload):
    udp = struct.pack(">HHHH", port, port, 8 + len(payload), 0)  # without a checksum
    source, destination = map(socket.inet_aton, (peer, address))
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp) + len(payload), 0, 0, 64, socket.IPPROTO_UDP, 0, source, destination)
    return ip + udp + payload

lengths = (extension_bytes + 16, 200, 1472)
garbage = {
    "short": [datagram(1, length) for length in (12, extension_bytes - 1)],
    "noise": [datagram(1, length, version ^ 1) for length in lengths],
    "foreign": [datagram(1, length) for length in lengths],
    "introduction": [datagram(0, introduction_bytes)],
    "spoofed": [spoofed(datagram(1, length)) for length in lengths],
    "epoch": [spoofed(datagram(1, lengths[epoch % 3], epoch=epoch)) for epoch in range(2, 3002)],
}
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
begun, sent = time.monotonic(), 0
while (now := time.monotonic() - begun) < seconds:
    while sent < now * rate:
        kind = kinds[sent % len(kinds)]
        content = garbage[kind][sent // len(kinds) % len(garbage[kind])]
        try: raw.sendto(content, (address, 0)) if kind in ("spoofed", "epoch") else plain.sendto(content, (address, port))
        except OSError: pass
        sent += 1
    time.sleep(0.0005)
print(sent)
"""
# Prints the verification tag of the first datagram that comes to an address and a port.
OBSERVER = """
import socket, struct, sys
address, port, at = socket.inet_aton(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
while True:
    frame = frames.recv(2000)
    udp = 14 + (frame[14] & 15) * 4
    is_datagram = frame[23] == 17 and frame[30:34] == address and frame[udp + 2:udp + 4] == struct.pack(">H", port)
    if is_datagram and len(frame) >= udp + 8 + at + 4:
        sys.exit(print(frame[udp + 8 + at:][:4].hex(), flush=True))
"""
READER = """
import socket, time
socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
socket.bind(("0.0.0.0", %d))
print("ready", flush=True)
time.sleep(10000)
""" % UNREAD
Result = collections.namedtuple("Result", "none beside at_port datagrams")


def wire():
    """What the source says: the version, the lengths of an extension and of an introduction, and where the verification tag is.
    Unit: bytes."""
    crates = launch.ROOT / "crates"
    files = ["proto/src/wire/mod.rs", "proto/src/wire/extension.rs", "link/src/address.rs", "link/src/datagram/seal.rs"]
    text = "".join((crates / file).read_text() for file in files)
    value = lambda name: int(re.search(rf"const {name}: \w+ = (\d+);", text)[1])  # noqa: E731
    body = re.search(r"LinkExtension\(0, .*?\n    }\n", text, re.S)[0]
    length = lambda text: sum(map(int, re.findall(r": u?U?(8|16|32|64),", text))) // 8  # noqa: E731
    extension = length(body)
    introduction = extension + value("SALT_BYTES") + value("ADDRESS_BYTES") + value("TAG_BYTES")
    return value("VERSION"), extension, introduction, length(body[:body.index("verification:")])


def program(seconds):
    """The measuring program and its settings."""
    settings = {"FI_WEIR_PORTS": f"{PORT}-{PORT}", "FI_WEIR_LINK": "udp"}
    return [launch.compile_c(launch.ROOT / "tests" / "mpi" / "measure.c"), "latency", seconds, 8], settings


def latency(hosts, seconds):
    """Starts the measuring program. Half a round trip of 8 B between h1 and h2."""
    words, settings = program(seconds)
    words, env = hosts.mpiexec("mpich", 2, words, per_host=1, settings=settings)
    return launch.run(words, timeout=60, env=env)


def flood(hosts, seconds, port, rate, kinds, observes=False):
    """Begins to send garbage to this port of h1 and h2: `rate` datagrams a second in all. An observer first waits for a datagram
    there."""
    *lengths, verification_at = wire()
    strangers = []
    for victim, peer in ((1, 2), (2, 1)):
        address, tag = f"{netns.NETWORK}.{victim}", None
        if observes:
            words = hosts.words(f"h{victim}", ["python3", "-c", OBSERVER, address, port, verification_at])
            tag = subprocess.Popen(words, stdout=subprocess.PIPE).stdout
        words = ["python3", "-c", STRANGER, address, port, f"{netns.NETWORK}.{peer}", seconds, rate / 2, observes,
                 *lengths, *kinds]
        strangers.append(subprocess.Popen(hosts.words("h3", words), stdin=tag, stdout=subprocess.PIPE, text=True))
    for stranger in strangers:
        stranger.stdout.readline()
    return strangers


def sent_by(strangers):
    """Waits for their end. Returns the number of datagrams."""
    return sum(int(stranger.communicate()[0]) for stranger in strangers)


def measured(hosts, seconds, port, rate, kinds, observes):
    """Half a round trip while garbage goes to this port of h1 and h2. Unit: us. Also the number of datagrams."""
    strangers = flood(hosts, seconds + 3, port, rate, kinds, observes and port == PORT) if port else []
    outcome = latency(hosts, seconds)
    sent = sent_by(strangers)
    found = re.search(r"\bus=([\d.]+)", outcome.output)
    if not outcome.ok or not found:
        raise SystemExit(f"the measurement failed: {outcome}")
    return float(found[1]), sent


def dropped(kind, observes, seconds=0.5, rate=2000):
    """How many datagrams the endpoints of a program dropped for each reason while garbage of this kind came from an observer, or
    from somebody who has seen nothing."""
    with netns.Hosts(3) as hosts:
        hosts.count = 2
        words, settings = program(seconds)
        report, file = hosts.state / "report.json", hosts.state / "hostfile"
        file.write_text("h1\nh2\n")
        flags = [flag for pair in settings.items() for flag in ("--set", "=".join(pair))]
        run = [launch.WEIR, "run", "-n", 2, "--mpi", launch.mpiexec("mpich"), "--hosts", file, *flags, "--json", report, "--", *words]
        strangers = flood(hosts, 60, PORT, rate, [kind], observes)
        outcome = launch.run(hosts.words(netns.LOGIN, run), timeout=60, env=hosts.login_environment())
        for stranger in strangers:
            stranger.kill()
            stranger.wait()
        hosts.count = 3
        if not outcome.ok:
            raise SystemExit(f"the program failed: {outcome}")
        network = launch.read_report(report)["total"]["network"]
    return {reason: network[f"dropped_{reason}"] for reason in ("malformed", "foreign", "forged", "in_kernel")}


def measure(rounds=7, seconds=1.0, rate=20000, kinds=tuple(KINDS), observes=False):
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
            for port in (None, UNREAD, PORT):
                took, sent = measured(hosts, seconds, port, rate, kinds, observes)
                times[port].append(took)
                datagrams += sent if port == PORT else 0
                time.sleep(0.1)
        for reader in readers:
            reader.kill()
            reader.wait()
        hosts.count = 3
    return Result(times[None], times[UNREAD], times[PORT], datagrams)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of three measurements (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of one (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=20000, help="datagrams a second of the stranger (default: %(default)s)")
    parser.add_argument("--kind", action="append", choices=KINDS, help="garbage of this kind only; can be repeated (default: all)")
    parser.add_argument("--observer", action="store_true",
                        help="the stranger has seen datagrams of the job, and copies their verification tags")
    options = parser.parse_args()
    if reason := netns.reason_not_possible():
        raise SystemExit(reason)
    launch.require(launch.PROVIDER, launch.env_dir("mpich"))
    result = measure(options.rounds, options.seconds, options.rate, options.kind or tuple(KINDS), options.observer)
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
