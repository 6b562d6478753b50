"""MPI programs across pretended hosts, over UDP between them and shared memory inside each."""

import os
import re
import signal
import threading
import time

import imb
import launch
import mpi4py_compare
import netns
import pytest
import stress
import xdp

reason = netns.reason_not_possible()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))

MPIS = ["mpich", "intel", "openmpi"]
QUICK = ["-msglog", "0:16", "-iter", "10", "-time", "5"]
BENCHMARKS = ["PingPong", "Allreduce", "Alltoall"]
# A silent peer is lost after so long in the tests of faults.
LIMIT_SECONDS = 2
# It is an error at the others so long after its end. Time in which a rank does not get a core does not count for the limit.
ERROR_SECONDS = LIMIT_SECONDS + 2


def run(hosts, mpi, ranks, program, *, timeout=120, mark=None, **rest):
    words, env = hosts.mpiexec(mpi, ranks, program, **rest)
    return launch.run(words, timeout=timeout, env=env, mark=mark)


class Job:
    """A run in the background."""

    def __init__(self, hosts, mpi, ranks, program, **rest):
        self.outcome, self.mark = None, launch.new_mark()
        self.thread = threading.Thread(target=self._run, args=(hosts, mpi, ranks, program), kwargs=rest)
        self.thread.start()

    def _run(self, *arguments, **rest):
        self.outcome = run(*arguments, mark=self.mark, **rest)

    def freeze_launcher(self):
        """From now on the launcher ends no rank because another one has ended."""
        for process, line in launch.marked(self.mark):
            if "hydra" in line.split()[0] or "mpiexec" in line.split()[0]:
                os.kill(process, signal.SIGSTOP)

    def end(self):
        self.thread.join()
        return self.outcome

    def kill(self):
        for process, _ in launch.marked(self.mark):
            os.kill(process, signal.SIGKILL)
        return self.end()


def wait_for_process(hosts, name, program):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := hosts.processes(name, program):
            return found
        time.sleep(0.02)
    pytest.fail(f"{program} does not run on {name}")


def stress_program(mpi, rounds=10, max_bytes=1 << 20, seconds=None):
    compiler = "openmpi" if mpi == "openmpi" else "mpich"
    length = ["--seconds", seconds] if seconds else ["--rounds", rounds]
    return [launch.compile_c(stress.SOURCE, compiler), "--seed", 5, "--max-bytes", max_bytes, *length]


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("count,ranks", [(2, 2), (2, 4), (4, 4)])
def test_every_byte_is_correct_across_hosts(hosts, mpi, count, ranks):
    outcome = run(hosts(count), mpi, ranks, stress_program(mpi))
    assert outcome.ok and "all correct" in outcome.output, outcome
    assert not outcome.leftovers, outcome


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
@pytest.mark.parametrize("count,ranks", [(2, 2), (2, 4), (4, 4)])
def test_benchmarks_complete_across_hosts(hosts, mpi, count, ranks):
    outcome = run(hosts(count), mpi, ranks, imb.program(ranks, BENCHMARKS, *QUICK))
    assert imb.complete(outcome.output, BENCHMARKS), outcome


@pytest.mark.parametrize("mpi,name", [("mpich", "test_p2p_buf.py"), ("mpich", "test_cco_buf.py"), ("mpich", "test_rma.py"),
                                      ("intel", "test_p2p_buf.py"), ("openmpi", "test_p2p_buf.py")])
def test_mpi4py_tests_pass_across_hosts(hosts, tmp_path, mpi, name):
    mpi4py_compare.fetch_suite()
    prefix = tmp_path / "rank"
    program = [launch.python(mpi), mpi4py_compare.RANK_SCRIPT, mpi4py_compare.SUITE, prefix, name]
    outcome = run(hosts(2), mpi, 2, program)
    assert outcome.ok, outcome
    for rank in range(2):
        lines = (tmp_path / f"rank.{rank}").read_text().splitlines()
        results = dict(line.rsplit("\t", 1) for line in lines if "\t" in line)
        assert len(results) > 10 and set(results.values()) <= mpi4py_compare.PASSED, results


def test_all_peers_can_be_reached_over_udp_alone(hosts):
    outcome = run(hosts(2), "mpich", 4, stress_program("mpich"), settings={"FI_WEIR_LINK": "udp"})
    assert outcome.ok and "all correct" in outcome.output, outcome


@pytest.mark.parametrize("mpi", MPIS)
def test_every_byte_is_correct_over_ipv6(hosts, mpi):
    outcome = run(hosts(2), mpi, 4, stress_program(mpi, rounds=5), settings={"FI_WEIR_NET": netns.NETWORK6})
    assert outcome.ok and "all correct" in outcome.output, outcome


@pytest.mark.parametrize("network,table", [(netns.NETWORK6, "udp6"), (None, "udp")])
def test_sockets_are_on_the_chosen_network(hosts, network, table):
    """Without a setting it is IPv4, if both are there."""
    script = ("import sys; from mpi4py import MPI; MPI.COMM_WORLD.Barrier();"
              "tables = ' '.join(name for name in ('udp', 'udp6') if any(':' in line for line in open(f'/proc/net/{name}')));"
              "sys.stdout.write(f'sockets in {tables}\\n'); MPI.COMM_WORLD.Barrier()")
    settings = {"FI_WEIR_NET": network} if network else {}
    outcome = run(hosts(2), "mpich", 2, [launch.python("mpich"), "-c", script], settings=settings)
    assert outcome.ok and outcome.output.count(f"sockets in {table}\n") == 2, outcome


def test_without_a_network_the_first_contact_says_what_to_do(hosts):
    outcome = run(hosts(2), "mpich", 2, stress_program("mpich"), settings={"FI_WEIR_LINK": "shm"}, timeout=60)
    assert not outcome.ok and outcome.status is not None, outcome
    assert "no link reaches the endpoint" in outcome.output and "FI_WEIR_LINK=shm,udp" in outcome.output, outcome


def test_a_first_contact_through_a_firewall_says_what_to_look_at(hosts):
    two = hosts(2)
    filters = [xdp.Filter(two, name, protocol="udp", drop=1000) for name in two.names]
    outcome = run(two, "mpich", 4, stress_program("mpich"), settings=limited(FI_WEIR_PORTS="20100-20199"), timeout=60)
    assert sum(filter.end() for filter in filters) > 0
    assert not outcome.ok and outcome.status is not None, outcome
    lines = [line for line in outcome.output.splitlines() if "cannot connect" in line]
    place = r"UDP 10\.99\.0\.\d:201\d\d"
    own = [re.search(rf"nothing has come from {place} to ({place}) \(interface eth0\) for [23]\.\d s", line) for line in lines]
    assert own and all(own), outcome
    # Not for each peer. A rank that has ended does not keep its neighbour from saying the same.
    assert len({found[1] for found in own}) == len(lines), outcome
    for line in lines:
        assert all(word in line for word in ("firewall", "FI_WEIR_PORTS", "FI_WEIR_NET", "weir doctor --hosts")), line


@pytest.mark.parametrize("receives", [0, 1])
def test_ranks_with_different_schemes_are_told_so_and_end(hosts, receives):
    """One sends and the other only receives, in both ways."""
    script = (f"from mpi4py import MPI; world = MPI.COMM_WORLD; other = 1 - world.rank;"
              f"world.recv(source=other) if world.rank == {receives} else world.send(b'', other)")
    flow = "case $PMI_RANK in 0) export FI_WEIR_FLOW=static;; esac; exec \"$@\""
    program = ["sh", "-c", flow, "sh", launch.python("mpich"), "-m", "mpi4py", "-c", script]
    outcome = run(hosts(2), "mpich", 2, program, settings={"FI_WEIR_FLOW": "demand"}, timeout=60)
    assert not outcome.ok and outcome.status is not None, outcome
    lines = {line for line in outcome.output.splitlines() if "cannot connect" in line}
    assert lines and all("FI_WEIR_FLOW of this rank is" in line for line in lines), outcome
    assert all("static" in line and "demand" in line for line in lines), outcome


def test_the_ports_of_endpoints_are_in_the_range(hosts):
    script = ("import sys; from mpi4py import MPI; MPI.COMM_WORLD.Barrier();"
              "ports = [int(line.split()[1].rpartition(':')[2], 16) for line in open('/proc/net/udp') if ':' in line];"
              "sys.stdout.write(f\"ports {' '.join(map(str, ports))}\\n\"); MPI.COMM_WORLD.Barrier()")
    program = [launch.python("mpich"), "-c", script]
    outcome = run(hosts(2), "mpich", 4, program, settings={"FI_WEIR_PORTS": "20100-20105"})
    assert outcome.ok, outcome
    lines = [line.split()[1:] for line in outcome.output.splitlines() if line.startswith("ports")]
    assert len(lines) == 4 and all(len(ports) == 2 for ports in lines), outcome
    assert all(20100 <= int(port) <= 20105 for ports in lines for port in ports), outcome


@pytest.mark.parametrize("mpi", MPIS)
def test_a_job_inside_one_host_opens_no_socket(hosts, mpi):
    script = ("import sys; from mpi4py import MPI; MPI.COMM_WORLD.Barrier();"
              "sys.stdout.write(f\"sockets {sum(':' in line for line in open('/proc/net/udp'))}\\n\"); MPI.COMM_WORLD.Barrier()")
    outcome = run(hosts(1), mpi, 2, [launch.python(mpi), "-c", script])
    assert outcome.ok and outcome.output.count("sockets 0") == 2, outcome


def limited(**more):
    return {"FI_WEIR_PEER_TIMEOUT_S": str(LIMIT_SECONDS), **more}


def traffic(tmp_path, *arguments):
    (tmp_path / "ranks").mkdir()
    return [launch.compile_c(launch.ROOT / "tests" / "mpi" / "traffic.c"), tmp_path / "ranks", *arguments]


def seconds_to_errors(tmp_path, ranks):
    """Waits until the ranks have written an error to their files. Returns the time, or None after a long one."""
    begun = time.monotonic()
    while time.monotonic() < begun + 10 * LIMIT_SECONDS:
        texts = {rank: (tmp_path / f"out.{rank}").read_text() for rank in ranks}
        if all(f"rank {rank}: error" in text for rank, text in texts.items()):
            return time.monotonic() - begun
        time.sleep(0.05)
    return None


def running_traffic(hosts, tmp_path, ranks):
    """Endless traffic, each rank on a host of its own and with its output in a file. Its launcher ends no rank."""
    words = " ".join(map(str, traffic(tmp_path, "exchange", -1, 0)))
    program = ["sh", "-c", f"exec {words} > {tmp_path}/out.$PMI_RANK 2>&1"]
    job = Job(hosts, "mpich", ranks, program, settings=limited(), timeout=60)
    for name in hosts.names:
        wait_for_process(hosts, name, "traffic")
    time.sleep(1.5)
    job.freeze_launcher()
    assert job.outcome is None, job.outcome
    return job


def test_a_killed_rank_is_an_error_at_the_other_hosts(hosts, tmp_path):
    three = hosts(3)
    job = running_traffic(three, tmp_path, 3)
    for process in three.processes("h3", "traffic"):
        os.kill(process, signal.SIGKILL)
    seconds = seconds_to_errors(tmp_path, [0, 1])
    job.kill()
    assert seconds and seconds < ERROR_SECONDS, f"{seconds} s"


def test_a_host_that_vanishes_is_an_error_at_the_others(hosts, tmp_path):
    two = hosts(2)
    job = running_traffic(two, tmp_path, 2)
    two.kill("h2")
    seconds = seconds_to_errors(tmp_path, [0])
    job.kill()
    assert seconds and seconds < ERROR_SECONDS, f"{seconds} s"


def test_an_interface_that_is_down_for_a_moment_delays_only(hosts):
    two = hosts(2)
    job = Job(two, "mpich", 2, stress_program("mpich", seconds=5))
    wait_for_process(two, "h2", "stress")
    time.sleep(1)
    assert job.outcome is None, job.outcome
    two.enter("h2", "ip link set eth0 down")
    time.sleep(2)
    two.enter("h2", "ip link set eth0 up")
    outcome = job.end()
    assert outcome.ok and "all correct" in outcome.output, outcome


def test_a_rank_that_is_stopped_for_longer_than_the_limit_goes_on(hosts):
    two = hosts(2)
    job = Job(two, "mpich", 2, stress_program("mpich", seconds=3 * LIMIT_SECONDS + 3), settings=limited())
    stopped = wait_for_process(two, "h2", "stress")
    time.sleep(1)
    assert job.outcome is None, job.outcome
    for process in stopped:
        os.kill(process, signal.SIGSTOP)
    time.sleep(3 * LIMIT_SECONDS)
    for process in stopped:
        os.kill(process, signal.SIGCONT)
    outcome = job.end()
    assert outcome.ok and "all correct" in outcome.output, outcome


@pytest.mark.parametrize("mpi", MPIS)
def test_a_rank_that_computes_for_longer_than_the_limit_is_not_lost(hosts, mpi):
    """Before its first call, and later."""
    script = f"""
import time
from mpi4py import MPI
world = MPI.COMM_WORLD
for number in range(2):
    if world.rank == 1:
        end = time.monotonic() + {3 * LIMIT_SECONDS}
        while time.monotonic() < end: pass
    for size in (8, 100000):
        if world.rank == 0: world.send(bytes(size), 1, number)
        else: assert world.recv(source=0, tag=number) == bytes(size)
world.Barrier()
import sys
sys.stdout.write("received\\n")
"""
    outcome = run(hosts(2), mpi, 2, [launch.python(mpi), "-c", script], settings=limited())
    assert outcome.ok and outcome.output.count("received") == 2, outcome


def test_a_rank_that_polls_once_between_long_computations_is_not_lost(hosts):
    """In such a poll it reads datagrams of some peers, and says to all that it polls."""
    script = f"""
import sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Barrier()
if world.rank == 0:
    for _ in range(3):
        end = time.monotonic() + {2 * LIMIT_SECONDS}
        while time.monotonic() < end: pass
        world.Iprobe(source=1)
    for peer in range(1, world.size): assert world.recv(source=peer) == peer
else:
    world.send(world.rank, 0)
world.Barrier()
sys.stdout.write("received\\n")
"""
    outcome = run(hosts(3), "mpich", 6, [launch.python("mpich"), "-c", script], settings=limited())
    assert outcome.ok and outcome.output.count("received") == 6, outcome


def test_the_command_takes_a_program_by_its_relative_path():
    program = os.path.relpath(launch.python("mpich"), launch.ROOT)
    words = [launch.ROOT / "tools" / "netns.py", "-n", 2, "--", program, "-c", "from mpi4py import MPI; print('here')"]
    outcome = launch.run(words, timeout=60, cwd=launch.ROOT)
    assert outcome.ok and outcome.output.count("here") == 2, outcome
