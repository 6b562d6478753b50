"""`weir run --hosts` across pretended hosts: report, stall lines and `weir explain` with ranks of other hosts."""

import json
import os
import shutil
import subprocess
import time

import launch
import netns
import pytest
import stress
import xdp

reason = netns.reason_not_possible()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))

MPIS = ["mpich", "intel", "openmpi"]
# Rank 1 sends more than fits, while rank 0 computes. Argument: number of messages.
STALL = """
import sys, time
from mpi4py import MPI
world, messages = MPI.COMM_WORLD, int(sys.argv[1])
world.Barrier()
if world.rank == 1:
    requests = [world.isend(bytes(1000), 0, 1) for _ in range(messages)]
    sys.stderr.write("sending\\n")
    MPI.Request.waitall(requests)
elif world.rank == 0:
    end = time.monotonic() + 6
    while time.monotonic() < end: pass
    for _ in range(messages): world.recv(source=1, tag=1)
world.Barrier()
"""


@pytest.fixture
def two():
    with netns.Hosts(2) as hosts:
        yield hosts


def command(hosts, words, *, file="h1\nh2\n", own_directories=True, shell=None):
    """The command line of `weir` on the login node, and its environment."""
    (hosts.state / "hostfile").write_text(file)
    env = {**hosts.login_environment(), "WEIR_REMOTE_SHELL": str(shell or hosts.state / "agent")}
    if not own_directories:
        del env["TMPDIR"]  # /tmp is one for all
    return hosts.words(netns.LOGIN, [launch.WEIR, *words]), env


def weir(hosts, words, *, timeout=120, **rest):
    line, env = command(hosts, words, **rest)
    return launch.run(line, timeout=timeout, env=env)


def run_words(hosts, mpi, ranks, program, *flags):
    return ["run", "-n", ranks, "--mpi", launch.mpiexec(mpi), "--hosts", hosts.state / "hostfile", *flags, "--", *program]


def stress_program(mpi):
    compiler = "openmpi" if mpi == "openmpi" else "mpich"
    return [launch.compile_c(stress.SOURCE, compiler), "--seed", 5, "--rounds", 5, "--max-bytes", 1 << 18]


def hosts_of_ranks(report):
    return {rank["rank"]: rank["host"] for rank in report["ranks"]}


def left_behind(hosts):
    """Directories of runs that are still there."""
    return [found for name in [*hosts.names, netns.LOGIN]
            if (found := hosts.enter(name, f"ls -d {hosts.shared}/weir-* 2>/dev/null || true").stdout.split())]


@pytest.mark.parametrize("mpi", MPIS)
def test_the_report_has_the_ranks_of_all_hosts(two, mpi, tmp_path):
    report = tmp_path / "report.json"
    outcome = weir(two, run_words(two, mpi, 4, stress_program(mpi), "--json", report), file="h1:3\nh2:1\n")
    assert outcome.ok and "all correct" in outcome.output, outcome
    assert "ranks of each host: h1 3, h2 1" in outcome.output, outcome
    told = launch.read_report(report)
    assert hosts_of_ranks(told) == {0: "h1", 1: "h1", 2: "h1", 3: "h2"}, outcome
    assert all(rank["closed"] and rank["counters"]["messages_sent"] > 0 for rank in told["ranks"]), told
    assert {rank["ranks_of_node"] for rank in told["ranks"]} == {1, 3}, told
    assert told["remarks"] == [], told
    assert left_behind(two) == [] and not outcome.leftovers, outcome


def test_a_directory_that_all_hosts_share_is_read_once(two, tmp_path):
    report, page = tmp_path / "report.json", tmp_path / "page"
    flags = ["--json", report, "--report", page]
    outcome = weir(two, run_words(two, "mpich", 4, stress_program("mpich"), *flags), own_directories=False)
    assert outcome.ok, outcome
    told = launch.read_report(report)
    assert hosts_of_ranks(told) == dict.fromkeys(range(4)) and told["remarks"] == [], told


def test_the_page_has_the_traces_of_all_hosts(two, tmp_path):
    outcome = weir(two, run_words(two, "mpich", 2, stress_program("mpich"), "--report", tmp_path / "page"))
    assert outcome.ok and "the page is" in outcome.output, outcome
    assert "cannot read" not in outcome.output, outcome
    text = (tmp_path / "page" / "report.html").read_text()
    assert "rank 0" in text and "rank 1" in text


# One slot for each sender: it has no credit as soon as the receiver computes. Or more than the window of the link holds.
FEW_SLOTS = ["--flow", "static", "--credit-slots", 1, "--mailbox-slots", 2]
MANY_SLOTS = ["--flow", "static", "--mailbox-slots", 65536]


@pytest.mark.parametrize("messages,flags,waits_for,awaited", [
    (300, FEW_SLOTS, "credit", "for credit from"),
    (3000, MANY_SLOTS, "link", "for room in the window of the link to"),
])
def test_a_stall_between_hosts_is_explained(two, messages, flags, waits_for, awaited):
    program = [launch.python("mpich"), "-c", STALL, messages]
    words, env = command(two, run_words(two, "mpich", 2, program, *flags))
    mark = launch.new_mark()
    job = subprocess.Popen(list(map(str, words)), env={**os.environ, **env, launch.MARK: mark}, text=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        told, begun = {"jobs": []}, time.monotonic()
        while time.monotonic() - begun < 20:
            time.sleep(0.3)
            outcome = weir(two, ["explain", "--json"], timeout=30)
            if outcome.status == 3:
                told = json.loads(outcome.output)
                break
        assert [stall["sender"] for explained in told["jobs"] for stall in explained["stalls"]] == ["rank 1"], outcome
        explained = told["jobs"][0]
        assert explained["causes"] == ["cause: rank 1 waits for rank 0, which waits for no credit"], told
        stall = explained["stalls"][0]
        assert stall["receiver_last_poll_s"] > 0.5 and stall["waits_for"] == waits_for, told
        assert f" {awaited} rank 0: " in stall["text"] and "; rank 0 has not polled for " in stall["text"], told
        assert all(endpoint["lives"] for endpoint in explained["endpoints"]), told
        output, _ = job.communicate(timeout=60)
    finally:
        launch.end_marked(mark, patience=0.5)
        job.wait()
    assert job.returncode == 0, output
    # The line of the rank itself names the socket of its peer.
    assert "rank 1 has waited" in output and f" {awaited} " in output and " at 10.99.0.1:" in output, output


def agent_without(hosts, name):
    """A remote shell that reaches all hosts but one."""
    shell = hosts.state / "shell"
    shell.write_text(f'#!/bin/sh\n[ "$1" = {name} ] && {{ echo "no route to {name}" >&2; exit 255; }}\n'
                     f'exec {hosts.state}/agent "$@"\n')
    shell.chmod(0o755)
    return shell


def test_a_host_that_cannot_be_reached_is_named(two):
    outcome = weir(two, run_words(two, "mpich", 2, ["true"]), shell=agent_without(two, "h2"))
    assert outcome.status == 1 and "no route to h2" in outcome.output, outcome
    assert outcome.output.startswith("weir: h2: ") and "without a password" in outcome.output, outcome
    assert left_behind(two) == []


def run_with_killed_helper(hosts, place, **rest):
    """The helper of h2 is killed while the program runs. Outcome and report of the run."""
    script = place / "program"
    script.write_text("#!/bin/sh\n[ $(hostname) = h2 ] && kill -9 $(pgrep -f '[h]ost-helper')\nexec \"$@\"\n")
    script.chmod(0o755)
    report = place / "report.json"
    words = run_words(hosts, "mpich", 2, [script, *stress_program("mpich")], "--json", report)
    outcome = weir(hosts, words, **rest)
    return outcome, launch.read_report(report)


def test_a_killed_helper_is_replaced(two, tmp_path):
    outcome, told = run_with_killed_helper(two, tmp_path)
    assert outcome.ok and "all correct" in outcome.output, outcome
    assert hosts_of_ranks(told) == {0: "h1", 1: "h2"} and told["remarks"] == [], told
    assert left_behind(two) == [] and not outcome.leftovers, outcome


def test_counters_that_cannot_be_collected_are_named(two, tmp_path):
    """The helper of h2 is killed, and h2 cannot be reached again."""
    once = two.state / "once"
    once.write_text(f'#!/bin/sh\ncase "$1 $2" in "h2 "*host-helper) mkdir {tmp_path}/reached || exit 255;; esac\n'
                    f'exec {two.state}/agent "$@"\n')
    once.chmod(0o755)
    outcome, told = run_with_killed_helper(two, tmp_path, shell=once)
    assert "all correct" in outcome.output, outcome
    assert any(remark.startswith("h2: ") and "the counters of its ranks are missing" in remark and "FI_WEIR_STATS" in remark
               for remark in told["remarks"]), told
    assert hosts_of_ranks(told) == {0: "h1"}, told


@pytest.mark.parametrize("file,ranks,words", [
    ("h1:1\nh2:1\n", 3, ["-n 3", "2 slots", "1 to 2"]),
    ("\n# none\n", 1, ["the file names no host"]),
    ("h1\nno-such-host\n", 1, ["no-such-host", "has no address"]),
    ("h1:many\n", 1, ["line 1", "`many`", "HOST:RANKS"]),
])
def test_a_wrong_file_of_hosts_is_named(two, file, ranks, words):
    outcome = weir(two, run_words(two, "mpich", ranks, ["true"]), file=file)
    assert outcome.status == 2 and all(word in outcome.output for word in words), outcome


def doctor(hosts, *flags, **rest):
    """Status, and what `weir doctor --hosts` writes as JSON."""
    outcome = weir(hosts, ["doctor", "--hosts", hosts.state / "hostfile", "--json", *flags], **rest)
    return outcome, json.loads(outcome.output[outcome.output.index("{"):])


def bad(told):
    return [(finding["check"], finding["level"]) for finding in told["findings"] if finding["level"] != "ok"]


def path(told, start, end):
    (found,) = [found for found in told["paths"] if (found["from"], found["to"]) == (start, end)]
    return found


def test_doctor_finds_three_hosts_working():
    with netns.Hosts(3) as hosts:
        outcome, told = doctor(hosts, file="h1\nh2\nh3\n")
        assert outcome.ok and told["usable"] and len(told["paths"]) == 6, outcome
        assert [(host["name"], host["interface"], host["mtu_bytes"]) for host in told["hosts"]] == [
            (f"h{number}", "eth0", 1500) for number in (1, 2, 3)], outcome
        for found in told["paths"]:
            assert found["datagrams_arrived"] == 3 and found["path_mtu_bytes"] == 1500, outcome
            assert found["round_trip_ns"] > 0 and found["tcp_error"] is None, outcome
        text = weir(hosts, ["doctor", "--hosts", hosts.state / "hostfile"], file="h1\nh2\nh3\n")
        assert text.ok and "every host reaches every other one." in text.output and "1500 B" in text.output, text


def test_doctor_and_a_run_work_over_ipv6(two, monkeypatch):
    """The setting reaches the helpers and the ranks from the login node."""
    monkeypatch.setenv("FI_WEIR_NET", netns.NETWORK6)
    outcome, told = doctor(two)
    assert outcome.ok and told["usable"] and [host["address"] for host in told["hosts"]] == ["fd99::1", "fd99::2"], outcome
    for found in told["paths"]:
        assert found["datagrams_arrived"] == 3 and found["path_mtu_bytes"] == 1500 and found["tcp_error"] is None, outcome
    done = weir(two, run_words(two, "mpich", 4, stress_program("mpich")))
    assert done.ok and "all correct" in done.output, done


def test_doctor_finds_a_host_whose_plug_in_is_no_library(two, tmp_path):
    (tmp_path / "cut-off").touch()
    library = launch.PROVIDER.resolve()
    two.enter("h2", f"mount --bind {tmp_path / 'cut-off'} {library}")
    try:
        outcome, told = doctor(two)
    finally:
        two.enter("h2", f"umount {library}")
    assert outcome.status == 1 and bad(told) == [("provider", "fail")], outcome
    (finding,) = told["findings"]
    assert "h2: " in finding["seen"] and "is no library" in finding["seen"], outcome


@pytest.mark.parametrize("link,level,words", [
    ("shm,ofi:tcp", "warn", ["core provider tcp", "UDP is what is checked"]),
    ("shm", "fail", ["has no network"]),
])
def test_doctor_says_if_ranks_would_use_another_link(two, monkeypatch, link, level, words):
    monkeypatch.setenv("FI_WEIR_LINK", link)
    outcome, told = doctor(two)
    assert outcome.ok == (level == "warn") and bad(told) == [("link", level)], outcome
    assert all(word in told["findings"][0]["seen"] for word in words), outcome


def test_doctor_finds_a_path_that_works_in_one_direction(two):
    filter = xdp.Filter(two, "h2", protocol="udp", drop=1000)
    outcome, told = doctor(two)
    assert outcome.status == 1 and bad(told) == [("UDP", "fail")], outcome
    assert (path(told, "h1", "h2")["datagrams_arrived"], path(told, "h2", "h1")["datagrams_arrived"]) == (0, 3), outcome
    (finding,) = told["findings"]
    assert finding["seen"].startswith("h1 (10.99.0.1:") and "FI_WEIR_PORTS" in finding["change"], outcome
    assert filter.end() >= 3


def test_doctor_finds_a_firewall_that_drops_tcp(two):
    filter = xdp.Filter(two, "h1", protocol="tcp", drop=1000)
    outcome, told = doctor(two)
    assert outcome.status == 1 and bad(told) == [("TCP", "fail")] * 2, outcome
    assert path(told, "h2", "h1")["tcp_error"] and path(told, "h1", "h2")["tcp_error"], outcome
    assert all(found["datagrams_arrived"] == 3 for found in told["paths"]) and filter.end() > 0, outcome


@pytest.fixture
def firewall(two):
    """Drops packets to ports of h2: `firewall("udp dport 5-7")`."""
    if not shutil.which("nft"):
        pytest.skip("nft is not installed")
    chain = "chain ip ports in { type filter hook input priority 0; policy accept; }"
    yield lambda match: two.enter(
        "h2", f"nft 'add table ip ports; add {chain}; add rule ip ports in {match} counter drop'")
    two.enter("h2", "nft delete table ip ports 2>/dev/null || true")


@pytest.mark.parametrize("protocol,words", [("udp", "no datagram arrives"), ("tcp", "no TCP connection")])
def test_doctor_finds_a_firewall_that_passes_a_part_of_the_range(two, monkeypatch, firewall, protocol, words):
    """The port of the first trials may be blocked too."""
    firewall(f"{protocol} dport 20100-20132")
    monkeypatch.setenv("FI_WEIR_PORTS", "20100-20199")
    outcome, told = doctor(two)
    chosen = told["ports"]["chosen"]
    assert (chosen[0], chosen[-1], len(chosen), chosen[5]) == (20100, 20199, 15, 20135), outcome
    assert outcome.status == 1 and bad(told) == [("ports", "fail")], outcome
    found, back = path(told, "h1", "h2"), path(told, "h2", "h1")
    blocked = found[f"ports_without_{protocol}"]
    assert set(chosen[:5]) <= set(blocked) and max(blocked) <= 20132, outcome
    assert found[f"ports_without_{'tcp' if protocol == 'udp' else 'udp'}"] == [], outcome
    assert back["ports_without_udp"] == back["ports_without_tcp"] == [], outcome
    assert set(chosen) <= set(found["ports_tried"]) and len(found["ports_tried"]) <= 16, outcome
    (finding,) = [finding for finding in told["findings"] if finding["level"] == "fail"]
    assert f"h1 to h2: {words} at {len(blocked)} of {len(found['ports_tried'])} ports: 20100" in finding["seen"], outcome
    assert "FI_WEIR_PORTS" in finding["change"], outcome


def test_doctor_tries_all_ports_of_a_short_range(two, monkeypatch):
    monkeypatch.setenv("FI_WEIR_PORTS", "20100-20103")
    outcome, told = doctor(two)
    assert outcome.ok and told["usable"] and bad(told) == [], outcome
    for found in told["paths"]:
        assert found["ports_tried"] == [20100, 20101, 20102, 20103] and found["tcp_error"] is None, outcome
    text = weir(two, ["doctor", "--hosts", two.state / "hostfile"])
    assert text.ok and "4 of the 4 ports from 20100 to 20103 were tried" in text.output and "4 of 4" in text.output, text


def test_doctor_finds_a_small_path_mtu(two):
    """The bridge takes less than the interfaces of the hosts."""
    two.enter(netns.LOGIN, "ip link set v2 mtu 1400")
    outcome, told = doctor(two)
    assert bad(told) == [("path MTU", "warn")] * 2 and outcome.ok, outcome
    # What a port takes from its other end may be four bytes longer, the room for a VLAN.
    assert all(1400 <= found["path_mtu_bytes"] <= 1404 for found in told["paths"]), outcome


def test_doctor_names_what_it_cannot_reach_or_open(two):
    outcome, told = doctor(two, shell=agent_without(two, "h2"))
    assert outcome.status == 1 and bad(told) == [("reached", "fail")] and told["paths"] == [], outcome
    assert told["hosts"][1] == {**dict.fromkeys(told["hosts"][1]), "name": "h2"}, outcome
    line, env = command(two, ["doctor", "--hosts", two.state / "hostfile", "--json"])
    outcome = launch.run(line, timeout=60, env={**env, "FI_WEIR_NET": "192.168.0.0/16"})
    assert outcome.status == 1 and outcome.output.count("FI_WEIR_NET=192.168.0.0/16: no interface") == 2, outcome
