"""MPI programs across pretended hosts, over a core provider of libfabric between them and shared memory inside each."""

import os

import imb
import launch
import mpi4py_compare
import pytest
import test_hosts
from test_hosts import BENCHMARKS, MPIS, QUICK, run, stress_program

pytestmark = test_hosts.pytestmark

OVER_TCP = {"FI_WEIR_LINK": "shm,ofi:tcp"}
# The provider reads and writes large messages and remote memory by itself.
BY_READS = {**OVER_TCP, "FI_WEIR_PROTECTION": "off"}


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("count,ranks", [(2, 2), (2, 4)])
def test_every_byte_is_correct_over_tcp(hosts, mpi, count, ranks):
    outcome = run(hosts(count), mpi, ranks, stress_program(mpi), settings=OVER_TCP)
    assert outcome.ok and "all correct" in outcome.output, outcome
    assert not outcome.leftovers, outcome


@pytest.mark.parametrize("mpi", MPIS)
def test_every_byte_is_correct_by_reads_of_the_provider(hosts, mpi):
    outcome = run(hosts(2), mpi, 4, stress_program(mpi), settings=BY_READS)
    assert outcome.ok and "all correct" in outcome.output, outcome
    assert not outcome.leftovers, outcome


@pytest.mark.parametrize("mpi,name", [("mpich", "test_p2p_buf.py"), ("mpich", "test_rma.py"), ("intel", "test_rma.py")])
def test_mpi4py_tests_pass_by_reads_of_the_provider(hosts, tmp_path, mpi, name):
    test_mpi4py_tests_pass_over_tcp(hosts, tmp_path, mpi, name, BY_READS)


@pytest.mark.parametrize("vanishes", [False, True])
def test_the_end_of_a_rank_in_the_middle_of_reads_is_an_error(hosts, tmp_path, monkeypatch, vanishes):
    plain = test_hosts.limited
    monkeypatch.setattr(test_hosts, "limited", lambda **more: plain(**BY_READS, **more))
    if not vanishes:
        test_hosts.test_a_killed_rank_is_an_error_at_the_other_hosts(hosts, tmp_path)
        return
    # Of three ranks, the second and the third one send large messages to each other.
    three = hosts(3)
    job = test_hosts.running_traffic(three, tmp_path, 3)
    three.kill("h3")
    seconds = test_hosts.seconds_to_errors(tmp_path, [0, 1])
    job.kill()
    assert seconds and seconds < test_hosts.ERROR_SECONDS, f"{seconds} s"


@pytest.mark.parametrize("mpi", MPIS)
def test_ranks_of_one_host_can_use_tcp_too(hosts, mpi):
    outcome = run(hosts(2), mpi, 4, stress_program(mpi), settings={"FI_WEIR_LINK": "ofi:tcp"})
    assert outcome.ok and "all correct" in outcome.output, outcome


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
@pytest.mark.parametrize("protection", [{}, {"FI_WEIR_PROTECTION": "off"}], ids=["encrypted", "off"])
@pytest.mark.parametrize("provider", ["tcp;ofi_rxm", "udp;ofi_rxd"])
def test_every_byte_is_correct_over_layered_providers(hosts, mpi, provider, protection):
    settings = {"FI_WEIR_LINK": f"shm,ofi:{provider}", "FI_PROVIDER": "weir," + provider.replace(";", ","), **protection}
    says = {"mpich": {"MPIR_CVAR_DEBUG_SUMMARY": "1"}, "openmpi": {"OMPI_MCA_opal_common_ofi_verbose": "100"}}[mpi]
    outcome = run(hosts(2), mpi, 2, stress_program(mpi), settings=settings | says)
    assert outcome.ok and "all correct" in outcome.output, outcome
    assert {"mpich": "libfabric provider: weir", "openmpi": "mtl:ofi:provider: weir"}[mpi] in outcome.output, outcome


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_weir_run_shows_libfabric_the_layers_of_a_provider(mpi, tmp_path):
    flags, report = ["--set", "FI_WEIR_LINK=ofi:tcp;ofi_rxm"], tmp_path / "report.json"
    outcome = launch.run(launch.weir_run(2, stress_program(mpi), mpi=mpi, flags=flags, report=report), timeout=60)
    assert outcome.ok and "all correct" in outcome.output, outcome
    assert launch.read_report(report)["total"]["network"]["datagrams_received"] > 100


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
@pytest.mark.parametrize("count,ranks", [(2, 2), (2, 4), (4, 4)])
def test_benchmarks_complete_over_tcp(hosts, mpi, count, ranks):
    outcome = run(hosts(count), mpi, ranks, imb.program(ranks, BENCHMARKS, *QUICK), settings=OVER_TCP)
    assert imb.complete(outcome.output, BENCHMARKS), outcome


@pytest.mark.parametrize("mpi,name", [("mpich", "test_p2p_buf.py"), ("mpich", "test_rma.py"), ("intel", "test_cco_buf.py"),
                                      ("openmpi", "test_p2p_buf.py")])
def test_mpi4py_tests_pass_over_tcp(hosts, tmp_path, mpi, name, settings=None):
    mpi4py_compare.fetch_suite()
    prefix = tmp_path / "rank"
    program = [launch.python(mpi), mpi4py_compare.RANK_SCRIPT, mpi4py_compare.SUITE, prefix, name]
    outcome = run(hosts(2), mpi, 2, program, settings=settings or OVER_TCP)
    assert outcome.ok, outcome
    for rank in range(2):
        lines = (tmp_path / f"rank.{rank}").read_text().splitlines()
        results = dict(line.rsplit("\t", 1) for line in lines if "\t" in line)
        assert len(results) > 10 and set(results.values()) <= mpi4py_compare.PASSED, results


@pytest.mark.parametrize("mpi", MPIS)
def test_a_provider_that_does_not_exist_is_refused_by_name(hosts, mpi):
    settings = {"FI_WEIR_LINK": "shm,ofi:none"}
    outcome = run(hosts(1), mpi, 2, stress_program(mpi, rounds=1), settings=settings, timeout=60)
    assert not outcome.ok and outcome.status is not None, outcome
    assert "ofi:none: libfabric" in outcome.output and "no provider of this name" in outcome.output, outcome


@pytest.mark.parametrize("fault", [
    test_hosts.test_a_killed_rank_is_an_error_at_the_other_hosts,
    test_hosts.test_a_host_that_vanishes_is_an_error_at_the_others,
])
def test_the_end_of_a_rank_is_an_error_as_over_udp(hosts, tmp_path, monkeypatch, fault):
    plain = test_hosts.limited
    monkeypatch.setattr(test_hosts, "limited", lambda **more: plain(**OVER_TCP, **more))
    fault(hosts, tmp_path)


def test_a_rank_that_is_stopped_for_longer_than_the_limit_goes_on(hosts, monkeypatch):
    plain = test_hosts.limited
    monkeypatch.setattr(test_hosts, "limited", lambda **more: plain(**OVER_TCP, **more))
    test_hosts.test_a_rank_that_is_stopped_for_longer_than_the_limit_goes_on(hosts)


@pytest.mark.parametrize("mpi", MPIS)
def test_a_rank_that_computes_for_longer_than_the_limit_is_not_lost(hosts, monkeypatch, mpi):
    plain = test_hosts.limited
    monkeypatch.setattr(test_hosts, "limited", lambda **more: plain(**OVER_TCP, **more))
    test_hosts.test_a_rank_that_computes_for_longer_than_the_limit_is_not_lost(hosts, mpi)


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
def test_ranks_that_wait_with_too_few_cores_sleep_at_the_provider(hosts, mpi):
    seconds = 4
    script = f"""
import sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Barrier()
if world.rank == 0:
    time.sleep({seconds})
    for to in range(1, world.size): world.send(to, to)
else:
    begun = time.process_time()
    assert world.recv(source=0) == world.rank
    sys.stdout.write(f"used {{time.process_time() - begun:.2f}}\\n")
world.Barrier()
"""
    ranks = 4 * os.cpu_count()
    outcome = run(hosts(2), mpi, ranks, [launch.python(mpi), "-c", script], settings=OVER_TCP)
    used = [float(line.split()[1]) for line in outcome.output.splitlines() if line.startswith("used")]
    assert outcome.ok and len(used) == ranks - 1, outcome
    # Cores are no more than a fourth of the ranks, so ranks that do not sleep have a fourth of the time each, or less. A
    # sleep is ended at least once in a millisecond.
    assert max(used) < seconds / 8, outcome
