"""Collective operations of groups across pretended hosts: results, deaths, and ranks that do not take part."""

import re

import launch
import netns
import pytest
from test_collectives import performed, program

reason = netns.reason_not_possible()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))

MPIS = ["mpich", "intel", "openmpi"]
# The launcher ends all ranks when it sees one die. This shell hides the death.
OUTLIVED = ["sh", "-c", '"$@"; status=$?; sleep 10; exit $status', "sh"]


def run(hosts, mpi, ranks, words, *, timeout=120, **settings):
    settings = netns.with_collectives(True) | {"COLLECTIVES_ACROSS_HOSTS": "1"} | settings
    words, env = hosts.mpiexec(mpi, ranks, words, settings=settings)
    return launch.run(words, timeout=timeout, env=env)


def changed_at(rank, script, words):
    """The program, with a change of the environment at one rank."""
    return ["sh", "-c", f'test "${{PMI_RANK-$PMIX_RANK}}" != {rank} || {script}; exec "$@"', "sh", *words]


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("count,ranks", [(2, 4), (2, 7), (3, 3)])
def test_random_operations_have_the_results_of_the_mpi_and_the_bits_of_one_host(hosts, mpi, count, ranks):
    """Communicators of consecutive ranks and others, inside hosts and across. The program compares sums with those of rank order."""
    outcome = run(hosts(count), mpi, ranks, program("random", 600, mpi=mpi))
    assert outcome.ok and not outcome.leftovers, outcome
    assert performed(outcome) > 150, outcome


@pytest.mark.parametrize("mechanism", ["token", "proxy", "proxy,token"])
def test_operations_pass_the_gate_of_admission_and_end(hosts, mechanism):
    """A token or two, for messages and operations together: whoever waits for one must not hold what gives it back."""
    settings = {"FI_WEIR_ADMIT": mechanism, "FI_WEIR_ADMIT_TOKENS": "2" if mechanism == "token" else "1"}
    outcome = run(hosts(2), "mpich", 4, program("random", 120), **settings)
    assert outcome.ok and not outcome.leftovers, outcome
    assert performed(outcome) > 30, outcome


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("count,ranks", [(2, 5), (3, 4)])
def test_blocks_travel_on_two_levels_from_and_to_each_rank(hosts, mpi, count, ranks):
    """Roots that are participants of their hosts, and others. The MPI does none of these operations."""
    outcome = run(hosts(count), mpi, ranks, program("blocks", 20, mpi=mpi))
    assert outcome.ok, outcome
    assert performed(outcome) == 4 * ranks, outcome


def test_blocks_that_are_too_long_together_are_left_to_the_mpi(hosts):
    """Five ranks on two hosts: 2730 bytes for an all-gather or gather, 2048 for a scatter, 910 for an all-to-all."""
    for words, done in [(227, 4 * 5), (228, 3 * 5), (512, 3 * 5), (700, 0)]:
        outcome = run(hosts(2), "mpich", 5, program("blocks", words))
        assert outcome.ok and performed(outcome) == done, (words, outcome)


@pytest.mark.parametrize("mpi", MPIS)
def test_groups_of_freed_communicators_are_used_again(hosts, mpi):
    """An endpoint has 128 groups. Each communicator has two, and no operation is left to the MPI."""
    outcome = run(hosts(2), mpi, 4, program("loops", 150, mpi=mpi))
    assert outcome.ok, outcome
    assert performed(outcome) == 1 + 2 * 150, outcome


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_without_the_library_means_messages_for_all(hosts, mpi, rank):
    words = changed_at(rank, "unset LD_PRELOAD", program("loops", 5, mpi=mpi))
    outcome = run(hosts(2), mpi, 4, words, timeout=60)
    assert outcome.ok, outcome
    assert performed(outcome) == (-1 if rank == 0 else 0), outcome


def test_a_rank_with_another_setting_means_messages_for_all(hosts):
    words = changed_at(2, "export FI_WEIR_COLLECTIVES_ACROSS=0", program("loops", 5))
    outcome = run(hosts(2), "mpich", 4, words, timeout=60)
    assert outcome.ok and performed(outcome) == 0, outcome


def test_a_rank_that_has_messages_inside_its_host_go_elsewhere_means_messages_for_all(hosts):
    """Its MPI does not ask the provider for ranks of its own host, so it cannot know whether they take part."""
    words = ["sh", "-c", 'export MPIR_CVAR_NOLOCAL=0; exec "$@"', "sh", *program("loops", 5)]
    outcome = run(hosts(2), "mpich", 3, words, timeout=60)
    assert outcome.ok and performed(outcome) == 0, outcome


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_several_threads_in_the_mpi_mean_messages(hosts, mpi):
    outcome = run(hosts(2), mpi, 2, program("threads", 20, mpi=mpi))
    assert outcome.ok and performed(outcome) == 0, outcome


@pytest.mark.parametrize("count,ranks", [(2, 4), (3, 3)])
@pytest.mark.parametrize("last", [30, 31, 32])
def test_a_killed_rank_is_an_error_at_all_others_and_no_hang(hosts, tmp_path, count, ranks, last):
    """It is beside the participant of its host, or is one. It dies before a barrier, a broadcast of its own, and an all-reduce."""
    errors = tmp_path / "errors"
    errors.mkdir()
    words = [*OUTLIVED, *program("die", last, errors)]
    outcome = run(hosts(count), "mpich", ranks, words, timeout=60, FI_WEIR_PEER_TIMEOUT_S="2")
    assert outcome.status not in (0, None), outcome
    texts = {path.name: path.read_text() for path in errors.iterdir()}
    assert texts == dict.fromkeys(map(str, range(ranks - 1)), "Process failed"), outcome
    assert re.search(r"weir: MPI_\w+: rank \d of the communicator", outcome.output), outcome


@pytest.mark.parametrize("microseconds", [1, 5000, 300_000])
def test_a_rank_that_is_killed_at_any_moment_is_an_error_at_all_others(hosts, tmp_path, microseconds):
    """`kill -9` in the middle of operations of all kinds, beside the participant of its host."""
    errors = tmp_path / "errors"
    errors.mkdir()
    words = [*OUTLIVED, *program("killed", microseconds, errors)]
    outcome = run(hosts(2), "mpich", 4, words, timeout=60, FI_WEIR_PEER_TIMEOUT_S="2")
    assert outcome.status not in (0, None) and not outcome.leftovers, outcome
    texts = {path.name: path.read_text() for path in errors.iterdir()}
    assert texts == dict.fromkeys("012", "Process failed"), outcome


def test_ranks_that_share_a_host_use_groups_across_hosts_by_default(hosts, tmp_path):
    """`auto`: not with one rank on each host, whose messages cost no more."""
    two = hosts(2)
    (two.state / "hostfile").write_text("h1\nh2\n")
    for ranks, done in [(4, 41), (2, 0)]:
        report = tmp_path / f"report{ranks}.json"
        words = [launch.WEIR, "run", "-n", ranks, "--mpi", launch.mpiexec("mpich"), "--hosts", two.state / "hostfile",
                 "--json", report, "--", *program("loops", 20)]
        outcome = launch.run(two.words(netns.LOGIN, words), timeout=60, env=two.login_environment())
        assert outcome.ok and performed(outcome) == done, outcome
        counts = [(rank["operations_across"], rank["group_operations"]) for rank in launch.read_report(report)["ranks"]]
        assert counts == [(done, 0)] * ranks, outcome


def test_the_report_counts_operations_across_hosts(hosts, tmp_path):
    two, report = hosts(2), tmp_path / "report.json"
    (two.state / "hostfile").write_text("h1\nh2\n")
    words = [launch.WEIR, "run", "-n", 4, "--mpi", launch.mpiexec("mpich"), "--hosts", two.state / "hostfile",
             "--set", "FI_WEIR_COLLECTIVES_ACROSS=1", "--json", report, "--", *program("loops", 20)]
    outcome = launch.run(two.words(netns.LOGIN, words), timeout=60, env=two.login_environment())
    assert outcome.ok and performed(outcome) == 41, outcome
    counts = [(rank["operations_across"], rank["group_operations"]) for rank in launch.read_report(report)["ranks"]]
    assert counts == [(41, 0)] * 4, outcome
    assert "did 164 of them across hosts, with messages of one rank of each host" in outcome.output, outcome
