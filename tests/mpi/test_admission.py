"""Admission between pretended hosts: mechanisms, thresholds, a rank that is killed with tokens, and `weir tune --network`."""

import json
import os
import re
import signal
import subprocess
import time

import launch
import netns
import pytest

pytestmark = pytest.mark.skipif(bool(netns.reason_not_possible()), reason=str(netns.reason_not_possible()))


def weir(*words, timeout=300, **settings):
    outcome = launch.run([launch.WEIR, *words, "--quiet"], timeout=timeout, env=settings)
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
        assert (sample["most_held"] > 0) == (mechanism == "token"), "only tokens are held"
        assert (row["to_off"] is None) == (mechanism == "off")
        if traffic == "latency":
            assert (row["bytes"], row["ranks_per_host"]) == (8, 1)
        else:
            assert 0 < sample["p50_us"] <= sample["p99_us"], row
        assert (row["fairness"] is None) == (traffic in ("latency", "alltoall")), row
    waits = {mechanism: sum(row["samples"][0]["gate_waits"] for (_, of), row in rows.items() if of == mechanism) for mechanism in mechanisms}
    assert waits["off"] == 0 < waits["rate"], "packets kept their distance"
    senders = len([row for row in measured["rows"] if row["traffic"] == "incast"])
    assert senders == 3 and 0.5 <= rows["incast", "off"]["fairness"] <= 1, "two ranks send"
    assert page.read_text().count("<svg") == 7


def test_options_of_admission_need_it(tmp_path):
    for words, why in {("--traffic", "incast"): "--admission", ("--admission", "--measure", "latency"): "cannot be used with",
                       ("--admission", "--port-queue", "64"): "--port-rate"}.items():
        outcome = weir("bench", "net", *words, timeout=20)
        assert outcome.status == 2 and why in outcome.output, outcome


def measured(tmp_path, *words, **settings):
    """The rows of `weir bench net --admission=auto` by traffic and mechanism. The program checks all data."""
    record = tmp_path / "record.json"
    outcome = weir("bench", "net", "--admission=auto", "--quick", "--repeat", "1", "--traffic", "random", *words, "--json", record, **settings)
    assert outcome.ok, outcome
    content = json.loads(record.read_text())
    assert content["failures"] == [], content["failures"]
    return outcome, {(row["bytes"], row["mechanism"]): row["samples"][0] for row in content["rows"]}


def test_auto_limits_what_the_thresholds_name_and_nothing_else(tmp_path):
    thresholds = "udp:12288:2:4,udp:65536:3:4,ofi:16:1:1"  # the program itself reduces 8 KiB
    _, samples = measured(tmp_path, "--sizes", "16,16384,65536", "--per-host", "2", FI_WEIR_ADMIT_THRESHOLDS=thresholds)
    limited = samples[16384, "auto"]
    assert limited["gate_waits"] > 0 and 0 < limited["most_held"] <= 4 * 2 * 4, limited
    for key in [(16, "auto"), (65536, "auto"), *((size, "off") for size in (16, 16384, 65536))]:
        assert (samples[key]["gate_waits"], samples[key]["most_held"]) == (0, 0), key
    assert all(sample["per_s"] > 0 for sample in samples.values())


def test_auto_without_thresholds_is_off_and_the_result_says_so(tmp_path):
    outcome, samples = measured(tmp_path, "--sizes", "4096", "--per-host", "2")
    assert "auto has no thresholds" in outcome.output, outcome
    assert {(sample["gate_waits"], sample["most_held"]) for sample in samples.values()} == {(0, 0)}, samples


def test_one_rank_of_a_host_sends_for_the_others_with_and_without_tokens(tmp_path):
    record = tmp_path / "record.json"
    outcome = weir("bench", "net", "--admission=off,proxy,proxy-token", "--quick", "--repeat", "1", "--traffic", "random,incast",
                   "--per-host", "3", "--sizes", "16,2048", "--json", record, FI_WEIR_ADMIT_TOKENS="64")
    assert outcome.ok, outcome
    measured = json.loads(record.read_text())
    assert measured["failures"] == [], measured["failures"]
    rows = {(row["traffic"], row["bytes"], row["mechanism"]): row["samples"][0] for row in measured["rows"]}
    assert len(rows) == 2 * 2 * 3, rows.keys()
    for (traffic, size, mechanism), sample in rows.items():
        assert sample["per_s"] > 0 and (sample["most_held"] > 0) == (mechanism == "proxy-token"), (traffic, size, mechanism, sample)


@pytest.mark.parametrize("link", ["udp", "ofi:tcp"])
def test_a_report_says_how_many_datagrams_another_rank_has_sent(hosts, tmp_path, link):
    two, report = hosts(2), tmp_path / "report.json"
    (two.state / "hostfile").write_text("h1\nh2\n")
    program = [launch.compile_c(launch.ROOT / "tests/mpi/congestion.c"), "random", "0.5", "3", "32", "2048"]
    words = two.words(netns.LOGIN, [launch.WEIR, "run", "-n", "6", "--hosts", two.state / "hostfile", "--set", "FI_WEIR_ADMIT=proxy",
                                    "--set", f"FI_WEIR_LINK=shm,{link}", "--json", report, "--", *program])
    outcome = launch.run(words, timeout=60, env=two.login_environment())
    assert outcome.ok, outcome
    network = launch.read_report(report)["total"]["network"]
    assert 0 < network["proxy_sent_for_others"] < network["proxy_queued"] <= network["datagrams_sent"], network
    assert network["dropped_forged"] == 0, network
    assert "datagrams went through queues" in outcome.output, outcome


def until(done, seconds, what):
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


@pytest.mark.parametrize("admission, link, by, times", [
    ("auto", "udp", signal.SIGKILL, "1.5 3"), ("proxy", "udp", signal.SIGKILL, "0.8 1"), ("proxy", "ofi:tcp", signal.SIGKILL, "0.8 1"),
    ("proxy,token", "udp", signal.SIGSTOP, "0.8 1")])
def test_nobody_waits_for_ever_for_a_rank_that_was_killed_or_stopped(hosts, tmp_path, admission, link, by, times):
    """Two ranks of a host share four tokens, or send for each other. One ends or stops in the middle of its messages. The launcher ends nobody.

    MPICH ends ranks with an error when a peer is lost. What a rank does whose MPI goes on is in crates/engine/tests/admission.rs.
    """
    settings = {"FI_WEIR_LINK": f"shm,{link}", "FI_WEIR_ADMIT": admission, "FI_WEIR_ADMIT_TOKENS": "4", "FI_WEIR_ADMIT_THRESHOLDS": "udp:2048:1:4"}
    program = launch.compile_c(launch.ROOT / "tests/mpi/tokens.c")
    words, env = hosts(2).mpiexec("mpich", 4, ["sh", "-c", f"exec {program} {times} {int(by)} > {tmp_path}/out.$PMI_RANK 2>&1"], per_host=2,
                                  settings=settings)
    mark = launch.new_mark()
    job = subprocess.Popen([str(word) for word in words], env={**os.environ, **env, launch.MARK: mark}, stdin=subprocess.DEVNULL)

    def output():
        return "\n".join(file.read_text() for file in sorted(tmp_path.glob("out.*")))

    try:
        until(lambda: output().count(" begins\n") == 4, 20, output)
        for process, line in launch.marked(mark):
            if "hydra" in line.split()[0] or "mpiexec" in line.split()[0]:
                os.kill(process, signal.SIGSTOP)
        until(lambda: all(f"rank {rank}: " in output() for rank in (0, 2, 3)), 20, output)
    finally:
        for process, _ in launch.marked(mark):
            os.kill(process, signal.SIGKILL)
        job.wait()
    for rank in (0, 2):
        line = rf"rank {rank}: (\d+) exchanges, longest ([\d.]+) s; (all done|an error), ([\d.]+) s after the kill"
        [(exchanges, longest, how, after)] = re.findall(line, output())
        assert int(exchanges) > 5 and float(longest) < 2 and float(after) < 8, (how, output())
    assert re.search(r"rank 3: [1-9]\d* messages", output()), output()


def test_weir_tune_network_measures_saves_and_weir_run_uses_it(hosts, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    record, page = tmp_path / "record.json", tmp_path / "page.html"
    outcome = weir("tune", "--network", "--quick", "--port-rate", "200", "--port-queue", "64", "--save", "--json", record,
                   "--page", page, timeout=60)
    assert outcome.ok, outcome
    assert "Measures at most 38 jobs between 2 pretended hosts; expected: at most" in outcome.output, outcome
    assert "not on a network" in outcome.output, outcome
    tuned = json.loads(record.read_text())
    assert tuned["schema"] == "weir-tune-network-1" and tuned["port_rate_mbit"] == 200 and all(failed["why"] for failed in tuned["failures"])
    # On a loaded machine a job may have no result.
    swept = {(one["bytes"], one["ranks"], one["outstanding"]) for one in tuned["unlimited"] if one["per_s"] > 0}
    assert swept and swept <= {(size, 4, each) for size in (2048, 65536) for each in (1, 16, 64)}, tuned
    assert {one["bytes"] for one in tuned["congestion_thresholds"]} == {size for size, _, _ in swept}
    assert "beyond these numbers there are fewer operations. Ranks with one message each: none" in outcome.output, outcome
    points = {(one["bytes"], one["ranks"], one["traffic"], one["tokens"]) for one in tuned["comparisons"]}
    # A number that loses under one kind of traffic is not tried under the other. The sweep may add 1 or 16 tokens for each rank.
    tried = (4, 32, 64, 96)
    assert points <= {(size, 4, traffic, tokens) for size in (2048, 65536) for traffic in ("random", "incast") for tokens in tried}
    assert points, tuned
    figures = len({size for size, _, _ in swept}) + 2 * len({traffic for _, _, traffic, _ in points})
    assert page.read_text().count("<svg") == figures
    [saved] = (tmp_path / "config/weir").iterdir()
    line = f"FI_WEIR_ADMIT_THRESHOLDS={tuned['thresholds']}"
    assert (line in saved.read_text()) == bool(tuned["thresholds"]), saved.read_text()
    assert line in outcome.output or "Best here: no thresholds" in outcome.output

    # Whatever was measured: `weir run` passes what the file has, and its report says which step was in force.
    saved.rename(saved.with_name("login.settings"))
    saved.with_name("login.settings").write_text("FI_WEIR_ADMIT_THRESHOLDS=udp:2048:1:2,udp:1048576:1:0\n")
    two, report = hosts(2), tmp_path / "report.json"
    (two.state / "hostfile").write_text("h1\nh2\n")
    program = [launch.compile_c(launch.ROOT / "tests/mpi/congestion.c"), "random", "0.2", "2", "8", "65536"]
    words = two.words(netns.LOGIN, [launch.WEIR, "run", "-n", "4", "--hosts", two.state / "hostfile", "--json", report, "--", *program])
    outcome = launch.run(words, timeout=60, env=two.login_environment())
    assert outcome.ok, outcome
    assert "FI_WEIR_ADMIT_THRESHOLDS=udp:2048:1:2,udp:1048576:1:0 (saved by `weir tune` in" in outcome.output, outcome
    assert "admission: 2 tokens for messages from 2 KiB on with 1 active rank or more; packets waited" in outcome.output, outcome
    network = launch.read_report(report)["total"]["network"]
    assert network["gate_waits"] > 0 and network["gate_tokens"] == 2 and network["gate_step_bytes"] == 2048, network


def test_weir_tune_network_measures_between_the_hosts_of_a_file(hosts, tmp_path):
    """Over the remote shell and the core provider tcp: no host has the program or the directories of this command before."""
    two, record = hosts(2), tmp_path / "record.json"
    file = two.state / "hostfile"
    file.write_text("h1 slots=2\nh2\n")
    env = {**two.login_environment(), "WEIR_REMOTE_SHELL": str(two.state / "agent"), "XDG_CONFIG_HOME": str(tmp_path / "config")}

    def tune(*words):
        line = [launch.WEIR, "tune", "--network", "--hosts", file, "--quick", "--quiet", *words]
        return launch.run(two.words(netns.LOGIN, line), timeout=90, env=env)

    quick = ("--sizes", "16384", "--tokens", "8", "--repeat", "1")
    outcome = tune(*quick, "--link", "ofi:tcp", "--save", "--json", record)
    assert outcome.ok, outcome
    assert "Measures at most 7 jobs between 2 hosts; expected" in outcome.output and "Measured between h1, h2; link ofi:tcp." in outcome.output
    tuned = json.loads(record.read_text())
    assert (tuned["host_names"], tuned["failures"]) == (["h1", "h2"], []), tuned
    measured = {(one["traffic"], one["ranks"], one["tokens"]) for one in tuned["comparisons"]}
    assert ("random", 2, 8) in measured, "no more ranks than the slots of a host"
    assert all(one["off_per_s"]["median"] > 0 and one["gate_waits"] > 0 for one in tuned["comparisons"]), "counters of both hosts"
    assert "To start jobs on another host, copy the file there" in outcome.output
    assert ("ofi:16384:2:8" in (tmp_path / "config/weir/login.settings").read_text()) == (tuned["thresholds"] == "ofi:16384:2:8")
    for name in [*two.names, netns.LOGIN]:
        assert two.enter(name, f"ls -d {two.shared}/weir-* 2>/dev/null || true").stdout == "", f"directories on {name} are left"

    file.write_text("h1\n")
    outcome = tune()
    assert outcome.status == 2 and "one host; allowed: at least two" in outcome.output, outcome
    file.write_text("h1:1\nh2:4\n")
    outcome = tune("--per-host", "2")
    assert outcome.status == 2 and "--per-host 2: a host of the file takes less; allowed: 1 to 1" in outcome.output, outcome
