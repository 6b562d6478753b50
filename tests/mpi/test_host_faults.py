"""Faults of hosts and of the network between them: rows of the list and random faults of `tools/faults.py`, and the tool itself."""

import json
import shutil
import subprocess
import sys
import time

import checked
import faults
import garbage
import launch
import netns
import pytest
import relay

reason = netns.reason_not_possible()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))

# The rows that take a second or two. The rows with dead peers wait for the limit: one of them is here. `test_hosts.py` has a test of
# interfaces that are down and of stopped ranks.
QUICK = ["path MTU that shrinks", "ENOBUFS", "descriptors exhausted", "loss of 10 %", "duplication",
         "reordering", "corruption", "process killed"]


@pytest.fixture(scope="module")
def three():
    with netns.Hosts(3, launcher_network=True) as hosts:
        yield hosts


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_ends_as_it_must_and_nothing_is_lost(three, name):
    if name == "ENOBUFS" and not shutil.which("strace"):
        pytest.skip("no strace")
    result = faults.run_row(faults.World(three), name, 3)
    assert result.ok, result.problems
    assert sum(result.injected.values()) > 0 and result.counts.checked > 0
    assert 0 < result.memory_mib <= faults.MEMORY_MIB
    assert (result.lost, result.hangs, result.counts.wrong_bytes) == (None if name == "process killed" else 0, 0, 0)


def test_a_job_with_too_few_descriptors_ends_with_an_error_that_names_the_limit(three):
    result = faults.run_row(faults.World(three), "too few descriptors at start", 3)
    assert result.ok and result.hangs == 0 and result.happened == "2 errors name it", result
    assert sum(result.injected.values()) == 2 and result.counts.checked == 0, result


def test_old_packets_are_refused_after_a_reboot_with_the_same_address(three):
    result = faults.run_row(faults.World(three), "host rebooted, same address", 4)
    assert result.ok, result.problems
    assert result.injected["old packets"] > 0 and "refused" in result.happened, result


def test_a_path_that_stays_closed_in_one_direction_is_an_error_at_both_ends():
    """Nothing hangs, and nobody believes that the peer is reached because the other direction works."""
    with netns.Hosts(2, launcher_network=True) as hosts:
        result = faults.run_row(faults.World(hosts), "asymmetric loss that stays", 6)
    assert result.ok and result.happened == "error at 2 of 2", result
    assert result.injected["frames dropped"] > 0, result


@pytest.mark.parametrize("mpi,link", [("mpich", "ofi:tcp"), ("openmpi", "udp"), ("intel", "udp")])
def test_the_list_runs_with_other_links_and_mpis(three, mpi, link):
    result = faults.run_row(faults.World(three, mpi, link), "corruption", 5)
    assert result.ok and result.injected["frames corrupted"] > 0, result


def test_random_faults_lose_nothing(three):
    results = faults.run_mixed(faults.World(three), 0, 11, note=lambda line: None, least=2)
    assert len(results) == 2 and all(result.ok for result in results), results
    assert all(sum(result.injected.values()) > 0 for result in results), results


def test_the_tool_notices_a_wrong_byte():
    """Rank 0 changes a byte of a message before it sends it, after the fault."""
    words = [sys.executable, launch.ROOT / "tools" / "faults.py", "--list", "--only", "interface", "--flip", "--hosts", 2, "--json"]
    outcome = launch.run(words, timeout=60)
    assert outcome.status == 1, outcome
    text = outcome.output
    (row,) = json.loads(text[text.index("{\n"):text.rindex("\n}") + 2])["rows"].values()
    assert row["counts"]["wrong_bytes"] == row["counts"]["failures"] == 1 and not row["ok"], outcome
    assert row["injected"] == {"interface down": 1}, outcome


def test_traffic_counts_a_wrong_byte(three):
    with checked.Job(three, 3, "traffic", flip=1) as job:
        assert job.starts(), job.outcome
        deadline = time.monotonic() + 20
        while not job.total().wrong_bytes and time.monotonic() < deadline:
            time.sleep(0.02)
        total = job.total()
    assert (total.wrong_bytes, total.failures) == (1, 1), total


# Numbers the datagrams that come to a port until one is empty. Prints the numbers, and a minus for those with a changed byte.
RECEIVER = """
import socket
socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
socket.bind(("0.0.0.0", 20500))
print("ready", flush=True)
while content := socket.recv(2000):
    number = int.from_bytes(content[:4], "little")
    print("-" if content != content[:4] * 300 else number)
"""
SENDER = """
import socket, sys, time
socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(int(sys.argv[1])):
    socket.sendto(number.to_bytes(4, "little") * 300, ("10.99.0.2", 20500))
    time.sleep(0.0005)
time.sleep(0.1)
"""
LAST = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'', ('127.0.0.1', 20500))"


def received(hosts, count):
    """What arrives at h2 of `count` datagrams that h1 sends: numbers, and minus for changed ones."""
    receiver = subprocess.Popen(hosts.words("h2", [sys.executable, "-c", RECEIVER]), stdout=subprocess.PIPE, text=True)
    assert receiver.stdout.readline() == "ready\n"
    subprocess.run(hosts.words("h1", [sys.executable, "-c", SENDER, count]), check=True)
    # The last datagram comes from the host itself, so that no fault meets it.
    subprocess.run(hosts.words("h2", [sys.executable, "-c", LAST]), check=True)
    output, _ = receiver.communicate(timeout=20)
    return output.split()


@pytest.mark.parametrize("what", [{"drop": 100}, {"duplicate": 100}, {"reorder": 100}, {"corrupt": 100}, {"longest": 1000}, {}])
def test_a_relay_does_what_it_counts(three, what):
    count = 400
    wire = relay.Relay(three, "h2", protocol="udp", seed=7, **what)
    found = received(three, count)
    counts = wire.end()
    assert (counts["frames"], counts["refused"], counts["overrun"], counts["unsplit"]) == (count, 0, 0, 0), counts
    assert len(found) == count - counts["dropped"] - counts["too_long"] + counts["duplicated"], counts
    # A changed byte can lie in the number.
    right = [int(number) for number in found if number != "-"]
    assert len(found) - len(right) == counts["corrupted"] and set(right) <= set(range(count)), counts
    overtaken = sum(later < earlier for earlier, later in zip(right, right[1:]))
    assert (overtaken > 0) == (counts["reordered"] > 0 or counts["duplicated"] > 0), counts
    done = {"drop": "dropped", "duplicate": "duplicated", "reorder": "reordered", "corrupt": "corrupted", "longest": "too_long"}
    for name, key in done.items():
        assert (counts[key] > 0) == (name in what), counts


@pytest.mark.parametrize(("kind", "reason"), garbage.KINDS.items())
def test_garbage_of_an_observer_reaches_the_check_that_it_is_made_for(kind, reason):
    # The ranks keep both cores busy, so an observer may begin late.
    counts = garbage.dropped(kind, observes=True, seconds=1.5)
    assert counts.pop(reason) > 20 and set(counts.values()) == {0}, (reason, counts)


@pytest.mark.parametrize("kind", ["introduction", "spoofed"])
def test_the_kernel_drops_garbage_of_those_who_have_seen_nothing(kind):
    counts = garbage.dropped(kind, observes=False)
    seen = sum(counts.values()) - counts["in_kernel"]  # by an endpoint that has its port and no filter yet
    assert counts["in_kernel"] > 100 and seen < 20, counts


def test_the_measure_of_a_flood_of_garbage_runs():
    """Ratios mean something on an idle machine only: `tools/garbage.py`. Every byte of the traffic is checked."""
    result = garbage.measure(rounds=1, seconds=0.5)
    assert result.datagrams > 1000 and min(*result.none, *result.beside, *result.at_port) > 0, result
