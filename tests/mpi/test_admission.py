"""Admission between pretended hosts: `weir bench net --admission` measures every mechanism in every case."""

import json

import launch
import netns
import pytest

pytestmark = pytest.mark.skipif(bool(netns.reason_not_possible()), reason=str(netns.reason_not_possible()))


def weir(*words, timeout=300):
    outcome = launch.run([launch.WEIR, *words, "--quiet"], timeout=timeout)
    assert not outcome.leftovers, outcome
    return outcome


def test_bench_net_measures_every_mechanism_in_every_case(tmp_path):
    record, page = tmp_path / "record.json", tmp_path / "page.html"
    outcome = weir("bench", "net", "--admission", "--quick", "--repeat", "1", "--per-host", "2", "--sizes", "2048",
                   "--port-rate", "500", "--json", record, "--page", page)
    assert outcome.ok, outcome
    assert "random 2 KiB, 2 ranks a host, 16 each" in outcome.output and "passes 500 Mbit/s" in outcome.output
    measured = json.loads(record.read_text())
    assert measured["schema"] == "weir-bench-net-admission-1" and measured["failures"] == []
    rows = {(row["traffic"], row["mechanism"]): row for row in measured["rows"]}
    mechanisms = ["off", "rate", "token"]
    assert set(rows) == {(traffic, mechanism) for traffic in ("latency", "alltoall", "random", "incast") for mechanism in mechanisms}
    for (traffic, mechanism), row in rows.items():
        [sample] = row["samples"]
        assert sample["per_s"] > 0 and sample["datagrams"] > 0, row
        assert (sample["most_held"] > 0) == (mechanism != "off"), "the mechanism of the row was used"
        assert (row["to_off"] is None) == (mechanism == "off")
        if traffic == "latency":
            assert (row["bytes"], row["ranks_per_host"]) == (8, 1)
        else:
            assert 0 < sample["p50_us"] <= sample["p99_us"], row
        assert (row["fairness"] is None) == (traffic in ("latency", "alltoall")), row
    senders = len([row for row in measured["rows"] if row["traffic"] == "incast"])
    assert senders == 3 and 0.5 <= rows["incast", "off"]["fairness"] <= 1, "two ranks send"
    assert page.read_text().count("<svg") == 7


def test_options_of_admission_need_it(tmp_path):
    for words, why in {("--traffic", "incast"): "--admission", ("--admission", "--measure", "latency"): "cannot be used with",
                       ("--admission", "--port-queue", "64"): "--port-rate"}.items():
        outcome = weir("bench", "net", *words, timeout=20)
        assert outcome.status == 2 and why in outcome.output, outcome
