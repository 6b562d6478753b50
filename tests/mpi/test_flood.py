"""Short floods: the receiver's memory stays within its budget, all messages arrive, and memory is released afterwards.

`flood` checks every byte. The tests compare its figures with the bound. The run also touches MPI's memory for a receive
and the first pages of the mailbox. The envelopes in the bound cover both.
"""

import os

import launch
import pytest

SOURCE = launch.ROOT / "tests" / "mpi" / "flood.c"
KIB = 1024


def figures(outcome):
    lines = [line for line in outcome.output.splitlines() if line.startswith("flood ")]
    assert len(lines) == 1, outcome
    return dict(word.split("=") for word in lines[0].split()[1:])


def flood(over_weir, senders, messages, message_bytes, sends, pattern, *flags, timeout=60):
    program = [launch.compile_c(SOURCE), *map(str, (senders, messages, message_bytes)), sends, pattern]
    outcome, report = over_weir(senders + 1, program, flags=flags, timeout=timeout)
    return figures(outcome), report


def setting(name, value):
    return "--set", f"FI_WEIR_{name}={value}"


@pytest.mark.parametrize("budget", [64 * KIB, KIB * KIB, 16 * KIB * KIB])
@pytest.mark.parametrize("senders,messages,message_bytes", [(1, 20000, 2048), (3, 4000, 8), (3, 2000, 16384)])
@pytest.mark.parametrize("sends", ["blocking", "nonblocking"])
def test_the_receiver_stays_within_its_budget(over_weir, budget, senders, messages, message_bytes, sends):
    found, report = flood(over_weir, senders, messages, message_bytes, sends, "late", *setting("UNEXPECTED_BUDGET", budget))
    bound_kib = (1.05 * budget + 64 * senders * messages) / KIB
    assert int(found["peak_growth_kib"]) <= bound_kib, f"{found}, bound {bound_kib:.0f} KiB"
    counters = [rank["counters"] for rank in report["ranks"]]
    assert counters[0]["peak_budget_used_bytes"] <= budget
    if senders * messages * message_bytes > 2 * budget:
        assert sum(rank["forced_rendezvous"] for rank in counters) > 0, "more than the budget, and no sender used a forced rendezvous"


@pytest.mark.parametrize("senders,messages", [(1, 40000), (3, 12000)])
@pytest.mark.parametrize("pattern", ["late", "reversed", "anybody"])
def test_envelopes_stay_within_their_budget(over_weir, senders, messages, pattern):
    """The senders hold what the receiver has no envelopes for, and every receive still finds its message."""
    budget = KIB * KIB
    flags = [*setting("UNEXPECTED_BUDGET", budget), *setting("ENVELOPE_BUDGET", budget)]
    found, report = flood(over_weir, senders, messages, 8, "blocking", pattern, *flags)
    assert int(found["peak_growth_kib"]) <= 1.05 * 2 * budget / KIB, found
    counters = [rank["counters"] for rank in report["ranks"]]
    assert counters[0]["peak_envelope_bytes"] <= budget
    assert sum(rank["held_messages"] for rank in counters) > 0
    assert counters[0]["holder_requests_sent"] > 0


@pytest.mark.parametrize("message_bytes,counter", [(8, "peak_envelope_bytes"), (2048, "peak_budget_used_bytes")])
def test_memory_stays_within_the_bound_that_weir_run_prints(over_weir, message_bytes, counter):
    """Seven senders use up a budget of one receiver."""
    flags = [*setting("UNEXPECTED_BUDGET", KIB * KIB), *setting("ENVELOPE_BUDGET", 512 * KIB)]
    found, report = flood(over_weir, 7, 4000, message_bytes, "blocking", "late", *flags)
    assert int(found["peak_growth_kib"]) * KIB <= report["receiver_bound_bytes"], found
    receiver = report["ranks"][0]
    assert receiver["counters"][counter] > 256 * KIB
    # The bound covers the mailbox, the budgets, and little more.
    assert report["receiver_bound_bytes"] - receiver["mailbox_bytes"] <= 2 * KIB * KIB + 512 * KIB


@pytest.mark.parametrize("message_bytes", [8, 2048, 16384])
@pytest.mark.parametrize("sends", ["blocking", "nonblocking"])
def test_head_to_head_sends_complete(over_weir, message_bytes, sends):
    flood(over_weir, 2, 3000, message_bytes, sends, "head")


@pytest.mark.parametrize("message_bytes", [8, 2048])
def test_without_cross_memory_attach_payload_travels_in_packets(over_weir, message_bytes):
    flags = [*setting("UNEXPECTED_BUDGET", 64 * KIB), *setting("CROSS_MEMORY", 0)]
    _, report = flood(over_weir, 2, 2000, message_bytes, "blocking", "late", *flags)
    assert all(rank["counters"]["cross_memory_copies"] == 0 for rank in report["ranks"])
    assert sum(rank["counters"]["forced_rendezvous"] for rank in report["ranks"]) > 0


def test_a_sender_without_bounce_buffers_completes(over_weir):
    """No sender may use bounce buffers, and a non-blocking program still completes."""
    flags = [*setting("UNEXPECTED_BUDGET", 64 * KIB), *setting("BOUNCE_BYTES", 65536)]
    found, report = flood(over_weir, 1, 200, 2048, "nonblocking", "late", *flags)
    assert all(rank["counters"]["peak_bounce_bytes"] <= 65536 for rank in report["ranks"])


def test_memory_is_released_after_a_flood(over_weir):
    """Memory of all ranks returns to 110 % of its start, except memory of MPI and the lanes of connected senders."""
    found, report = flood(over_weir, 2, 20000, 2048, "blocking", "late")
    assert int(found["all_waited_growth_kib"]) > 60_000, "no rank used memory"
    # MPICH keeps some hundred KiB of requests and internal buffers for each rank after its first sends. A mailbox counts for
    # its owner and for each sender, because each maps it.
    mailboxes_kib = 3 * sum(rank["mailbox_bytes"] for rank in report["ranks"]) // 1024
    stays_kib = 3 * 512 + mailboxes_kib
    assert int(found["all_end_growth_kib"]) <= 0.1 * int(found["all_start_kib"]) + stays_kib, found


def test_with_more_ranks_than_cores_a_waiting_send_is_not_copied(over_weir):
    """A message of one packet that is not injected leaves from the program's buffer when there is credit."""
    program = [launch.compile_c(launch.ROOT / "tests" / "mpi" / "measure.c"), "incast", "0.05", "2048"]
    outcome, report = over_weir(2 * len(os.sched_getaffinity(0)) + 1, program, timeout=60)
    assert "incast senders=" in outcome.output, outcome
    assert sum(rank["counters"]["stalls"] for rank in report["ranks"]) > 0, "no sender waited for credit"
    copied = [rank["counters"]["peak_bounce_bytes"] for rank in report["ranks"]]
    assert max(copied) < 2048, f"largest copies by rank: {copied} B"  # short messages are injected
