#!/usr/bin/env python3
"""Counts the instructions of a message by layer: tests/mpi/measure.c over weir, with one rank under callgrind.

usage: tools/budget.py [latency|stream]:RANK:BYTES... | self:BYTES... | gate:BYTES...
       (docs/explanation/performance.md)

A row describes one rank. Rank 0 of a stream sends and rank 1 receives; in a round trip each does both. Only the function
of measure.c that moves messages is counted. The other rank runs without callgrind, so that the counted one rarely
waits. `reads` are calls of fi_cq_read. `empty` are those that found nothing and waited. Code of Rust's library counts
for the layer whose function contains it. Needs valgrind and `make build env-mpich`.

`gate:BYTES` and `self:BYTES` also count the instructions of a message in the files of offloaded operations. `gate:BYTES` counts
locked instructions in the files of admission too: those with the prefix `lock`, and `xchg` with memory. It needs binutils.

`self:BYTES` counts one receive, one send and one read of an endpoint that sends to itself (tools/self_messages.c). Every
run gives the same number, up to 0.5 %, so it compares two versions. With a network beside (FI_WEIR_LINK=shm,udp) it
counts the looks there apart: they come at most every few microseconds, and in the tool, where time runs slowly, with
every message. In a stream the number of reads for each message depends on the load of the machine, and with it the
instructions of the receiver. Needs valgrind, `make build` and Debian's libfabric-dev.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MPI = ROOT / "out/env/mpich"
SECONDS = "0.5"
FUNCTIONS = {"latency": "round_trips", "stream": "stream"}
SIZES = (8, 2048, 65536, 1048576)
DEFAULT = [f"{job}:{size}" for size in SIZES for job in ("stream:0", "stream:1", "latency:0")]
LAYERS = ["provider", "engine", "proto", "link"]
# Calls of the provider that post a message; one send of rank 0 is one message, in a round trip also one receive.
POSTS = re.compile(r"weir_fi::(tagged|message)::(inject|injectdata|send|senddata|sendmsg|recv|recvmsg)$")
GATE = re.compile(r"/admission/|/(gated|send_gate|policer|send_proxy|proxy_queues|token_lines)\.rs$")
# Collective operations, atomics and groups: machines, engine, node groups, and their part of the provider.
OFFLOADED = re.compile(r"/proto/src/(offload/|machine\.rs$|endpoint/outgoing\.rs$)|/link/src/shm/node_group"
                       r"|/engine/src/(collectives|levels|groups|machines|machine_buffers|atomics|operation_times)[/.]"
                       r"|/provider/src/(.*/)?(collective|group|node_groups|node_endpoints|marks|roster|sources|taken_receives|atomic)")
CLOCK = re.compile(r"clock_gettime|::host_time$")
# Mechanisms of admission below their thresholds: two messages are under way at most. With two servers each of the two endpoints is
# alone in its pool, as a rank whose node does not send otherwise.
MECHANISMS = {
    "off": {"FI_WEIR_ADMIT": "off"},
    "rate, 1 ns": {"FI_WEIR_ADMIT": "rate", "FI_WEIR_ADMIT_DELAY_NS": "1"},
    "token": {"FI_WEIR_ADMIT": "token"},
    "auto, none": {"FI_WEIR_ADMIT": "auto"},
    "auto, longer": {"FI_WEIR_ADMIT": "auto", "FI_WEIR_ADMIT_THRESHOLDS": "udp:65536:1:64"},
    "auto, more ranks": {"FI_WEIR_ADMIT": "auto", "FI_WEIR_ADMIT_THRESHOLDS": "udp:1:64:64"},
    "proxy, alone": {"FI_WEIR_ADMIT": "proxy", "FI_WEIR_ADMIT_SERVERS": "2"},
    "proxy": {"FI_WEIR_ADMIT": "proxy"},
    "proxy, token": {"FI_WEIR_ADMIT": "proxy,token"},
}
READ = "weir_fi::cq::read"
LOOK = re.compile(r"Links<.*>::poll_others$")
PAUSE = "weir_fi::state::domain_state::State::pause"


class Profile:
    """A profile of callgrind: own cost by layer, and number of calls by function."""

    def __init__(self, path):
        self.layers = Counter()
        self.files = Counter()
        self.functions = Counter()
        self.calls = Counter()
        self.inclusive = Counter()
        self._names = {}
        self._read(path)

    def _name(self, kind, text):
        number, _, name = text.partition(" ")
        if name:
            self._names[kind, number] = name
        return self._names[kind, number]

    @staticmethod
    def _layer(file, home, binary):
        for place in (file, home):
            found = re.search(r"crates/(\w+)/src/", place)
            if found:
                return found[1]
        if "libweir" in binary:
            return "library"  # Rust's library, not inlined
        return "MPI" if "libmpi" in binary else "program" if binary.endswith("measure") else "libc"

    def _read(self, path):
        binary = home = file = function = ""
        called = None
        for line in open(path):
            line = line.rstrip("\n")
            key, equals, value = line.partition("=")
            if equals and key in ("ob", "cob", "fl", "fi", "fe", "cfi", "cfl", "fn", "cfn", "calls"):
                if key == "ob":
                    binary = self._name("ob", value)
                elif key == "fl":
                    home = file = self._name("fl", value)
                elif key in ("fi", "fe"):
                    file = self._name("fl", value)
                elif key in ("cfi", "cfl"):
                    self._name("fl", value)
                elif key == "cob":
                    self._name("ob", value)
                elif key == "fn":
                    function = self._name("fn", value)
                elif key == "cfn":
                    called = self._name("fn", value)
                else:
                    self.calls[called] += int(value.split()[0])
                continue
            numbers = line.split()
            if len(numbers) != 2 or not re.match(r"[\d+*-]", numbers[0]):
                continue
            if called is not None:  # the line after `calls=` has the cost of the call
                self.inclusive[called] += int(numbers[1])
                if self._layer("", home, binary) in LAYERS + ["library"] and re.search(r"mem(cpy|move|set)", called):
                    self.layers["memcpy"] += int(numbers[1])
                    self.layers["libc"] -= int(numbers[1])
                called = None
                continue
            self.layers[self._layer(file, home, binary)] += int(numbers[1])
            self.functions[function] += int(numbers[1])
            self.files[file] += int(numbers[1])  # also of code that was inlined


def counted(what, rank, size, scratch):
    """Runs `measure` once. Returns the profile of one rank."""
    profile = scratch / f"{what}.{rank}.{size}"
    wrapper = scratch / "one-rank.sh"
    wrapper.write_text(
        '#!/bin/sh\n[ "${PMI_RANK:-}" = "$COUNTED" ] || exec "$@"\n'
        'exec valgrind --quiet --tool=callgrind --collect-atstart=no "--toggle-collect=$INSIDE" '
        '"--callgrind-out-file=$PROFILE" "$@"\n'
    )
    wrapper.chmod(0o755)
    environment = dict(os.environ, COUNTED=str(rank), INSIDE=FUNCTIONS[what], PROFILE=str(profile))
    command = [ROOT / "out/bin/weir", "run", "-q", "--mpi", "mpich", "-n", "2", "--", wrapper, scratch / "measure", what]
    subprocess.run([*command, SECONDS, str(size)], env=environment, check=True, stdout=subprocess.DEVNULL)
    return Profile(profile)


def self_messages(size, scratch):
    """Instructions of a message to oneself, and of its calls: the difference of two runs, without what both do once."""
    program = scratch / "self_messages"
    subprocess.run(["cc", "-O2", "-o", program, ROOT / "tools/self_messages.c", "-lfabric"], check=True)
    plugins = scratch / "plugins"
    plugins.mkdir(exist_ok=True)
    shutil.copy(ROOT / "out/lib/libweir-fi.so", plugins)
    environment = dict(os.environ, FI_PROVIDER_PATH=str(plugins))

    def collected(messages):
        out = scratch / f"self.{messages}"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, str(messages), size]
        run = subprocess.run(command, env=environment, check=True, stderr=subprocess.PIPE, text=True)
        return int(re.search(r"Collected : (\d+)", run.stderr)[1]), Profile(out)

    (less, profile_of_less), (more, profile) = collected(1000), collected(3000)

    def each(select, kind="inclusive"):
        """What a message costs or has of these functions, by name."""
        of_less, of_more = getattr(profile_of_less, kind), getattr(profile, kind)
        return {name: (of_more[name] - of_less[name]) / 2000 for name in of_more if select(name)}

    calls = each(lambda name: name == READ or POSTS.search(name))
    looks = sum(each(LOOK.search, "calls").values())
    offloaded = sum(each(OFFLOADED.search, "files").values())
    return (more - less) // 2000, calls, looks, sum(each(LOOK.search).values()), offloaded


def locked_addresses(binary):
    """The addresses of locked instructions in a binary that belong to the files of admission, also inlined ones."""
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", binary], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^ *([0-9a-f]+):\s+(?:lock\b|xchg\b[^\n]*\()", listing, re.MULTILINE)
    command = ["addr2line", "-a", "-i", "-e", binary]
    lines = subprocess.run(command, input="\n".join(found), capture_output=True, text=True, check=True).stdout
    addresses, address = set(), 0
    for line in lines.splitlines():
        if re.match(r"0x[0-9a-f]+$", line):
            address = int(line, 16)
        elif GATE.search(line.split(":")[0]):
            addresses.add(address)
    return addresses


def executed(path, binary, addresses):
    """How often a profile with addresses executes instructions of `binary` at these."""
    names, current, of_call, count = {}, "", False, 0
    for line in open(path):
        key, equals, value = line.rstrip("\n").partition("=")
        if equals and key in ("ob", "cob"):
            number, _, name = value.partition(" ")
            name = names.setdefault(number, name)
            current = name if key == "ob" else current
        elif key == "calls":
            of_call = True
        elif found := re.match(r"0x([0-9a-f]+) \d+ (\d+)$", line):
            if not of_call and current == str(binary) and int(found[1], 16) in addresses:
                count += int(found[2])
            of_call = False
    return count


def gate_messages(size, scratch):
    """Prints the instructions of a message for each mechanism: half the difference of two runs by round trips."""
    build = ["cargo", "build", "--release", "--locked", "--quiet", "-p", "weir-engine", "--example", "gate_cost"]
    subprocess.run(build, cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    program = target / "release/examples/gate_cost"

    def collected(mechanism, round_trips):
        out = scratch / f"gate.{round_trips}"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, str(round_trips), size]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FI_WEIR_ADMIT")}
        environment.update(MECHANISMS[mechanism])
        subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
        addressed = ["--dump-instr=yes", "--compress-pos=no", f"--callgrind-out-file={out}.addresses"]
        with_addresses = [*command[:2], *addressed, *command[3:]]
        subprocess.run(with_addresses, env=environment, check=True, stderr=subprocess.DEVNULL)
        return Profile(out), executed(f"{out}.addresses", program, locked)

    print(f"{'':20}{'total':>9}{'gate':>9}{'percent':>9}{'offloaded':>11}{'locked':>9}")
    off, locked = None, locked_addresses(program)
    for mechanism in MECHANISMS:
        (less, locked_of_less), (more, locked_of_more) = collected(mechanism, 500), collected(mechanism, 2500)

        def each(select, kind):
            """Instructions of a message in the files or functions with such names."""
            return sum((getattr(more, kind)[name] - getattr(less, kind)[name]) / 4000
                       for name in getattr(more, kind) if select.search(name))

        total, clock = each(re.compile(""), "functions"), each(CLOCK, "functions")
        off = off or (total, clock)
        gate = each(GATE, "files") + clock - off[1]
        offloaded = each(OFFLOADED, "files")
        of_locked = (locked_of_more - locked_of_less) / 4000
        print(f"{mechanism:20}{total:9.0f}{gate:9.0f}{100 * gate / off[0]:9.2f}{offloaded:11.1f}{of_locked:9.2f}", flush=True)


def main():
    jobs = sys.argv[1:] or DEFAULT
    of_self = [job for job in jobs if job.startswith("self:")]
    with tempfile.TemporaryDirectory(prefix="weir-budget-") as scratch:
        for job in of_self:
            total, calls, looks, of_looks, offloaded = self_messages(job.split(":")[1], Path(scratch))
            print(f"{job:20}{total:9} instructions")
            print("    " + ", ".join(f"{name} {cost:.0f}" for name, cost in calls.items() if cost >= 1))
            print(f"    files of offloaded operations {offloaded:.1f}")
            if looks > 0:
                print(f"    {looks:.2f} looks at networks {of_looks:.0f}, all else {total - of_looks:.0f}")
        for job in jobs:
            if job.startswith("gate:"):
                gate_messages(job.split(":")[1], Path(scratch))
    jobs = [job for job in jobs if not job.startswith(("self:", "gate:"))]
    if not jobs:
        return
    with tempfile.TemporaryDirectory(prefix="weir-budget-") as scratch:
        scratch = Path(scratch)
        subprocess.run([MPI / "bin/mpicc", "-O2", "-o", scratch / "measure", ROOT / "tests/mpi/measure.c"], check=True)
        columns = ["weir", *LAYERS, "library", "memcpy", "libc", "MPI"]
        print(f"{'':20}{'messages':>9}{'reads':>7}{'empty':>7}" + "".join(f"{name:>9}" for name in columns))
        missing = {READ, PAUSE}
        for job in jobs:
            what, rank, size = job.split(":")
            profile = counted(what, rank, size, scratch)
            if os.environ.get("KEEP"):
                (Path(os.environ["KEEP"]) / job).write_bytes((scratch / f"{what}.{rank}.{size}").read_bytes())
            posts = {name: calls for name, calls in profile.calls.items() if POSTS.search(name)}
            messages = max(posts.values())
            layers = profile.layers
            layers["weir"] = sum(layers[name] for name in [*LAYERS, "library", "memcpy"])
            missing -= profile.calls.keys()
            reads = profile.calls[READ] / messages
            pauses = profile.calls[PAUSE] / messages
            row = "".join(f"{layers[name] / messages:9.1f}" for name in columns)
            print(f"{job:20}{messages:9}{reads:7.2f}{pauses:7.2f}{row}")
            calls = [name for name in posts if posts[name] * 2 > messages] + [READ]
            print("    " + ", ".join(f"{name} {profile.inclusive[name] / messages:.0f}" for name in calls))
        if missing:
            sys.exit(f"no profile has a call of {', '.join(sorted(missing))}: the function was renamed or inlined")


if __name__ == "__main__":
    main()
