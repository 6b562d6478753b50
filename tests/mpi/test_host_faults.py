"""Faults of hosts and of the network between them, one by one and drawn at random (`tools/faults.py`)."""

import random

import faults
import garbage
import netns
import pytest
import xdp

reason = netns.reason_not_possible()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))


@pytest.mark.parametrize("fault", faults.SURVIVED, ids=lambda fault: fault.__name__)
def test_a_job_survives_a_fault_with_all_data_correct(fault):
    memory = faults.Memory()
    with netns.Hosts(2) as hosts:
        faults.survive(hosts, [fault], random.Random(3), memory)
    assert 0 < memory.peak <= faults.MEMORY_MIB


@pytest.mark.parametrize("fault", faults.DEADLY, ids=lambda fault: fault.__name__)
def test_the_others_have_an_error_within_the_limit_and_the_next_job_runs(fault):
    """A host that was deleted has begun again with its address. What the old one has sent is refused."""
    memory = faults.Memory()
    with netns.Hosts(3) as hosts:
        assert faults.die(hosts, fault, random.Random(4), memory) <= faults.ERROR_SECONDS
        faults.survive(hosts, [], random.Random(5), memory, seconds=1)


@pytest.mark.parametrize("protocol", [None, "udp"])
def test_a_path_that_stays_closed_in_one_direction_is_an_error_at_both_ends(protocol):
    """Nothing hangs, and nobody believes that the peer is reached because the other direction works, or another protocol."""

    filters = []

    def closed(hosts, name, random):
        filters.append(xdp.Filter(hosts, name, protocol=protocol, drop=1000))

    with netns.Hosts(2) as hosts:
        assert faults.die(hosts, closed, random.Random(6), faults.Memory()) <= faults.ERROR_SECONDS
        assert filters[0].end() > 0


def test_random_faults_lose_nothing():
    injected = faults.run(25, 11, count=3, note=lambda line: None)
    assert sum(injected.values()) > 0


@pytest.mark.parametrize(("kind", "reason"), garbage.KINDS.items())
def test_garbage_of_each_kind_reaches_the_check_that_it_is_made_for(kind, reason):
    counts = garbage.dropped(kind)
    assert counts.pop(reason) > 100 and set(counts.values()) == {0}, (reason, counts)


def test_the_measure_of_a_flood_of_garbage_runs():
    """Ratios mean something on an idle machine only: `tools/garbage.py`. Every byte of the traffic is checked."""
    result = garbage.measure(rounds=1, seconds=0.5)
    assert result.datagrams > 1000 and min(*result.none, *result.beside, *result.at_port) > 0, result
