"""Short runs of `weir bench`, `weir bench flood` and `weir bench overhead`: they measure, and their records are complete."""

import json
import os
import shutil

import launch
import netns
import pytest


def bench(tmp_path, *words, timeout):
    record = tmp_path / "record.json"
    outcome = launch.run([launch.WEIR, "bench", *words, "--quiet", "--json", record], timeout=timeout)
    assert outcome.status in (0, 1), outcome
    assert not outcome.leftovers, outcome
    return outcome, json.loads(record.read_text())


def test_bench_runs_and_resumes(tmp_path, private_shm):
    """A run is interrupted in its sixth line. The same command does not repeat the five jobs before."""
    out = tmp_path / "out"
    words = ("--quick", "--only", "weir,mpich-shm", "--measure", "latency,collectives,incast,flood,memory", "--ranks", "2",
             "--repeat", "1", "--out", out)
    outcome, record = bench(tmp_path, *words, timeout=120)
    assert outcome.ok, outcome
    assert "going on" not in outcome.output and "Half round trip" in outcome.output
    rows = {(row["contender"], row["what"], row["at"]): row for row in record["rows"]}
    latency = [("half_round_trip_us", size) for size in (8, 2048, 65536, 1 << 20)]
    others = [("barrier_us", 2), ("allreduce_us", 2), ("alltoall_us", 2), ("incast_per_s", 1), ("flood_s", 3),
              ("flood_growth_bytes", 3), ("rank_bytes", 2)]
    assert set(rows) == {(name, *measure) for name in ("weir", "mpich-shm") for measure in latency + others}
    assert all(len(row["samples"]) == 1 and row["samples"][0] >= 0 for row in rows.values())
    assert {target["verdict"] for target in record["targets"]} == {"not-measured"}
    page = (out / "bench.html").read_text()
    assert page.count("<svg") >= 7 and "Half round trip, 8 B" in page

    samples = out / "samples.jsonl"
    lines = samples.read_text().splitlines(keepends=True)
    assert len(lines) == 2 * 5 + 1 and "run_over" in lines[-1]
    samples.write_text("".join(lines[:5]) + lines[5][:20])
    outcome, again = bench(tmp_path, *words, timeout=120)
    assert outcome.ok and "resuming: 5 of 10 jobs" in outcome.output, outcome
    assert samples.read_text().splitlines(keepends=True)[:5] == lines[:5]
    kept = {(row["contender"], row["what"], row["at"]): row["samples"] for row in again["rows"]}
    assert set(kept) == set(rows)
    assert all(kept[key] == rows[key]["samples"] for key in rows if key[1:] in latency), "recorded jobs ran again"

    assert "run_over" in samples.read_text().splitlines()[-1], "a complete run ends with this line, so that the next one starts anew"
    assert launch.shm_files(private_shm) == []


def test_one_sided_operations_are_measured_and_checked(tmp_path, private_shm):
    outcome, record = bench(tmp_path, "one-sided", "--sizes", "8,65536", "--only", "weir,mpich-shm", "--repeat", "2",
                            "--seconds", "0.01", timeout=60)
    assert outcome.ok and record["results"]["failures"] == {}, outcome
    rows = {(row["to_itself"], row["operation"], row["bytes"], row["transport"]): row["samples"]
            for row in record["results"]["samples"]}
    assert set(rows) == {(to_itself, operation, size, name) for to_itself in (True, False)
                         for operation in ("put", "get", "accumulate") for size in (8, 65536)
                         for name in ("weir", "mpich-shm")}
    assert all(len(samples) == 2 and min(samples) > 0 for samples in rows.values()), rows
    assert launch.shm_files(private_shm) == []


def test_collectives_are_measured_in_groups_and_beside_other_mpis(tmp_path, private_shm, monkeypatch):
    """The first Open MPI that is found has no headers, as Debian's package of the launcher alone."""
    headerless = tmp_path / "headerless" / "bin"
    headerless.mkdir(parents=True)
    for name, script in {"mpiexec": "echo 'mpiexec (Open MPI) 4.1.4'", "mpicc": "echo 'mpi.h: no such file' >&2; exit 1"}.items():
        (headerless / name).write_text(f"#!/bin/sh\n{script}\n")
        (headerless / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{headerless}:{os.environ['PATH']}")
    outcome, record = bench(tmp_path, "collectives", "--ranks", "3", "--repeat", "2", "--time", "5", timeout=120)
    assert outcome.ok and record["missing"] == [], outcome
    assert record["contenders"] == ["weir, on", "weir, off", "Intel MPI", "Open MPI", "MPICH"]
    with_target = {"barrier", "allreduce", "reduce", "broadcast-short", "broadcast-long", "allgather", "alltoall"}
    with_target |= {"broadcast-late", "reduce-late"}
    operations = {*with_target, "gather", "scatter", "reduce-scatter", "ibarrier", "iallreduce", "reduce-late-least"}
    for contender in record["jobs"][0]["time_us"]:
        assert contender.keys() == operations, contender
        assert all(len(samples) == 2 and min(samples) > 0 for samples in contender.values()), contender
    for contender in record["jobs"][0]["overlap_percent"]:
        words = {"ibarrier-overlap", "iallreduce-overlap", "ibarrier-late-overlap", "iallreduce-late-overlap"}
        assert contender.keys() == words, contender
        assert all(len(samples) == 2 and 0 <= min(samples) <= max(samples) <= 100 for samples in contender.values()), contender
    cores = len(os.sched_getaffinity(0))
    with_overlap = (2 if cores > 3 else 0) + (2 if cores >= 3 else 0)
    least = record["jobs"][0]
    assert all(len(least[name]) == 2 and min(least[name]) > 0 for name in ("flat_counter_ns", "cache_line_ns", "exchange_ns")) or cores < 2, least
    assert outcome.output.count("\nLimit: ") == 2 or cores < 2, outcome
    assert outcome.output.count("\nTarget: barrier, 3 ranks") == 1, outcome
    assert outcome.output.count("too few rounds") == len(with_target) + with_overlap + 1, outcome
    assert launch.shm_files(private_shm) == []


def test_flood_measures_time_and_memory(tmp_path, private_shm):
    cases = {"1x2000x2048-blocking": 2000, "3x500x8-nonblocking": 1500}
    outcome, record = bench(tmp_path, "flood", "--cases", ",".join(cases), "--only", "weir,mpich-shm", "--repeat", "2",
                            "--timeout", "15", timeout=120)
    assert outcome.ok, outcome
    assert [case["case"]["bytes"] for case in record["cases"]] == [2048, 8]
    for case, unexpected in zip(record["cases"], cases.values()):
        rows = {row["transport"]: row for row in case["rows"]}
        assert set(rows) == {"weir", "mpich-shm"}
        for row in rows.values():
            assert row["ended"] is None and len(row["samples"]) == 2, row
            for sample in row["samples"]:
                assert sample["seconds"] > 0 and sample["unexpected_messages"] == unexpected, row
    # 2,000 messages of 2 KB take memory on the node, some of which was used before.
    weir = record["cases"][0]["rows"][0]
    assert all(sample["node_growth_bytes"] > 1000 * 2048 for sample in weir["samples"]), weir
    assert "weir finished within its memory bound in 2 of 2 cases" in outcome.output
    assert launch.shm_files(private_shm) == []


def test_flood_draws_a_figure(tmp_path, private_shm):
    figure = tmp_path / "flood.svg"
    outcome, record = bench(tmp_path, "flood", "--figure", figure, "--quick", "--only", "weir,mpich-shm", timeout=60)
    assert outcome.ok, outcome
    for row in record["cases"][0]["rows"]:
        assert len(row["samples"]) == 1 and len(row["memory"]) > 10, row
    svg = figure.read_text()
    assert "weir: at most" in svg and "MPICH" in svg and "(MiB)" in svg, svg


def test_an_unfinished_transport_has_a_row(tmp_path, private_shm):
    """libfabric's tcp stops reading from a peer after 64 unexpected messages, so the last tag never arrives."""
    outcome, record = bench(tmp_path, "flood", "--cases", "1x2000x2048-blocking", "--only", "ofi-tcp", "--repeat", "2",
                            "--timeout", "4", timeout=60)
    assert outcome.ok, outcome
    row = record["cases"][0]["rows"][0]
    assert row["samples"] == [] and row["ended"]["why"] == "timed out after 4 s", row
    assert "did not finish" in outcome.output


def test_overhead_measures_time_in_pairs(tmp_path, private_shm):
    outcome, record = bench(tmp_path, "overhead", "--flow", "static", "--measure", "time", "--pairs", "2", "--sizes", "8,2048",
                            timeout=120)
    points = record["time"]["points"]
    assert [(point["benchmark"], point["bytes"]) for point in points] == \
        [(name, size) for name in ("PingPong", "Sendrecv", "Exchange") for size in (8, 2048)]
    assert all(len(point[side]) == 2 and min(point[side]) > 0 for point in points for side in ("flow_us", "over_us"))
    overall = record["time"]["overall"]
    assert overall["pairs"] == 2 and overall["low"] <= overall["mean"] <= overall["high"]
    assert any(f"limit +3.0 %: {verdict}" in outcome.output for verdict in ("passed", "FAILED", "not resolved")), outcome


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_overhead_counts_instructions(tmp_path, private_shm):
    outcome, record = bench(tmp_path, "overhead", "--flow", "static", "--measure", "instructions", timeout=360)
    assert record["missing"] == [], outcome
    counts = {(flow["bytes"], flow["traffic"]): (flow, over) for flow, over in record["instructions"]}
    assert set(counts) == {(size, way) for size in (8, 2048) for way in ("one-way", "back-and-forth")}
    for flow, over in counts.values():
        for side in ("sender", "receiver"):
            assert 100 < over[side] < 20_000 and 100 < flow[side] < 20_000, counts
    # A longer message needs more instructions.
    assert counts[2048, "one-way"][0]["receiver"] > counts[8, "one-way"][0]["receiver"]


def test_a_wrong_option_gives_a_one_line_error(tmp_path):
    for words in (["flood", "--cases", "3x5"], ["flood", "--only", "pigeons"], ["overhead", "--flow", "magic"],
                  ["overhead", "--flow", "unlimited"], ["overhead", "--limit-time", "-1"], ["--only", "pigeons"],
                  ["--ranks", "1"], ["--quick", "pingpong"], ["one-sided", "--sizes", "6"],
                  ["one-sided", "--seconds", "0"]):
        outcome = launch.run([launch.WEIR, "bench", *words], timeout=20)
        assert outcome.status == 2 and len(outcome.output.strip().splitlines()) == 1, outcome


def test_net_measures_between_hosts_judges_targets_and_writes_a_page(tmp_path):
    """While frames are lost, and in an incast."""
    if reason := netns.reason_not_possible() or (None if shutil.which("nft") else "nft is not installed"):
        pytest.skip(reason)
    page = tmp_path / "net.html"
    outcome, record = bench(tmp_path, "net", "--quick", "--repeat", "1", "--measure", "latency,incast", "--ranks", "3",
                            "--only", "weir", "--loss", "20", "--page", page, timeout=120)
    assert outcome.ok, outcome
    assert [part["loss_per_mille"] for part in record["by_loss"]] == [0, 20]
    for part in record["by_loss"]:
        assert [failure for failure in part["failures"] if failure["contender"] == "weir"] == [], outcome
        rows = {(row["what"], row["at"]): row["samples"] for row in part["rows"] if row["contender"] == "weir"}
        assert all(min(rows["half_round_trip_us", size]) > 0 for size in (8, 2048, 65536, 1 << 20)), rows
        assert (("incast_sent_again", 2) in rows) == (part["loss_per_mille"] == 0), rows
    assert 0 <= rows_of(record, "incast_lost")[0] <= rows_of(record, "incast_sent_again")[0] < 0.5, record
    streams = {(stream["what"], stream["at"]): stream["median"] for stream in record["bare_streams"]}
    sizes = [("bytes_per_s", 2048), ("bytes_per_s", 65536), ("bytes_per_s", 1 << 20), ("messages_per_s", 8)]
    assert sorted(streams) == sizes and min(streams.values()) > 0, record
    targets = {target["text"]: target for target in record["targets"]}
    bare = targets["Half round trip, 8 B over bare UDP"]
    assert bare["limit"] == "at most 1.3" and bare["ratio"] > 0 and bare["verdict"] == "too-few-rounds", bare
    assert targets["Incast: rate over one to one, 15 to 1"]["verdict"] == "not-measured"
    assert f"0 of {len(targets)} targets reached" in outcome.output and f"page: {page}" in outcome.output, outcome
    text = page.read_text()
    assert text.count("<svg") >= 4 and "With 2 % of the frames lost: Half round trip" in text and "over bare UDP" in text


def test_net_compares_libfabrics_datagrams_and_collectives_across_hosts(tmp_path):
    if reason := netns.reason_not_possible():
        pytest.skip(reason)
    contenders = ["weir", "ofi-rxd", "weir-collectives-across"]
    outcome, record = bench(tmp_path, "net", "--quick", "--repeat", "1", "--measure", "latency,collectives", "--ranks", "2,4",
                            "--only", ",".join(contenders), "--loss", "0", timeout=180)
    assert outcome.ok and record["missing"] == [] and record["by_loss"][0]["failures"] == [], outcome
    rows = {(row["contender"], row["what"], row["at"]): row["median"] for row in record["by_loss"][0]["rows"]}
    for contender in contenders:
        for ranks in (2, 4):
            assert all(rows[contender, f"{what}_us", ranks] > 0 for what in ("barrier", "allreduce", "alltoall")), rows
    assert rows["ofi-rxd", "half_round_trip_us", 1 << 20] > 0, rows


def rows_of(record, what):
    return next(row["samples"] for row in record["by_loss"][0]["rows"] if row["what"] == what and row["contender"] == "weir")
