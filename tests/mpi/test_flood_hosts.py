"""Floods across hosts: the receiver's memory stays within the bound that `weir run --hosts` prints, like inside one host.

`flood` checks every byte. What was sent is more than the bound, so a receiver that keeps everything exceeds it.
"""

import json

import launch
import netns
import pytest
from test_flood import KIB, SOURCE, figures, setting

reason = netns.reason_not_possible()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))

BUDGET, ENVELOPES, LENGTH = KIB * KIB, 512 * KIB, 16 * KIB


@pytest.mark.parametrize("count,link,messages", [(2, "shm,udp", 1500), (4, "shm,udp", 700), (4, "shm,ofi:tcp", 700)])
def test_memory_stays_within_the_bound_that_weir_run_prints(hosts, count, link, messages):
    made = hosts(count)
    (made.state / "hostfile").write_text("\n".join(made.names) + "\n")
    report = made.state / "report.json"
    flags = [*setting("UNEXPECTED_BUDGET", BUDGET), *setting("ENVELOPE_BUDGET", ENVELOPES), *setting("LINK", link)]
    program = [launch.compile_c(SOURCE), count - 1, messages, LENGTH, "blocking", "late"]
    words = ["run", "-n", count, "--mpi", launch.mpiexec("mpich"), "--hosts", made.state / "hostfile", "--json", report, *flags]
    line = made.words(netns.LOGIN, [launch.WEIR, *words, "--", *program])
    env = {**made.login_environment(), "WEIR_REMOTE_SHELL": str(made.state / "agent")}
    outcome = launch.run(line, timeout=60, env=env)
    assert outcome.ok, outcome
    told, found = launch.read_report(report), figures(outcome)
    bound, growth = told["receiver_bound_bytes"], int(found["peak_growth_kib"]) * KIB
    assert (count - 1) * messages * LENGTH > bound, "a receiver without a bound would keep less"
    assert growth <= bound, found
    assert told["ranks"][0]["counters"]["peak_budget_used_bytes"] <= BUDGET
    # Without datagrams the bound is that of a receiver inside one host.
    datagrams = told["receiver_datagram_bytes"]
    assert datagrams > 2 * KIB * KIB and bound - datagrams - told["ranks"][0]["mailbox_bytes"] <= 2 * KIB * KIB + ENVELOPES
    assert f"{launch_bytes(datagrams)} of it for datagrams" in outcome.output, outcome
    assert sum(rank["counters"]["forced_rendezvous"] for rank in told["ranks"]) > 0, "no sender kept its payload"


def test_the_benchmark_of_the_network_judges_a_flood_by_the_bound(tmp_path):
    record = tmp_path / "net.json"
    words = ["--measure", "flood", "--quick", "--repeat", "1", "--only", "weir,ucx", "--quiet", "--json", record]
    outcome = launch.run([launch.WEIR, "bench", "net", *words], timeout=60)
    assert outcome.ok, outcome
    told = json.loads(record.read_text())
    bound, rows = told["flood"], told["by_loss"][0]["rows"]
    growth = {row["contender"]: row["median"] for row in rows if row["what"] == "flood_growth_bytes"}
    judged = [target for target in told["targets"] if target["text"].startswith("Flood: growth of the receiver")]
    assert growth["weir"] <= bound["bound_bytes"] < bound["payload_bytes"] <= growth["ucx"], told
    assert len(judged) == 1 and judged[0]["ratio"] == growth["weir"] / bound["bound_bytes"], judged
    assert "weir's receiver may grow by" in outcome.output, outcome


def launch_bytes(count):
    return f"{count / KIB / KIB:.3g} MiB"
