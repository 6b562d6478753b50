"""`weir tune`, `weir bench native`, `node-group` and `lock` measure without an MPI; `weir run` uses saved settings."""

import json

import launch
import pytest


def weir(*words, timeout=60):
    outcome = launch.run([launch.WEIR, *words], timeout=timeout)
    assert not outcome.leftovers, outcome
    return outcome


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "weir"


def test_saved_settings_are_used_until_deleted(config, tmp_path, private_shm):
    record = tmp_path / "record.json"
    outcome = weir("tune", "--repeat", "1", "--save", "--quiet", "--json", record)
    assert outcome.ok, outcome
    tuned = json.loads(record.read_text())
    for times in (size[traffic] for size in tuned["sizes"] for traffic in ("round_trip", "exchange")):
        assert len(times["eager_ns"]) == len(times["rendezvous_ns"]) == 1
        assert min(times["eager_ns"] + times["rendezvous_ns"]) > 0
    setting = f"FI_WEIR_EAGER_BYTES={tuned['eager_bytes']}"
    assert setting in outcome.output
    [saved] = config.iterdir()
    assert setting in saved.read_text()

    run = ("run", "-n", "2", "--", "IMB-MPI1", "PingPong", "-iter", "10", "-msglen", "/dev/null")
    assert f"{setting} (saved by `weir tune` in {saved})" in weir(*run).output
    overridden = weir("run", "-n", "2", "--set", "FI_WEIR_EAGER_BYTES=4096", *run[3:])
    assert "saved by" not in overridden.output

    saved.write_text("FI_WEIR_EAGER_BITES=1\n")
    refused = weir(*run)
    assert refused.status == 2 and str(saved) in refused.output and "FI_WEIR_EAGER_BITES" in refused.output

    assert f"removed {saved}" in weir("tune", "--forget").output
    assert "nothing was saved" in weir("tune", "--forget").output
    assert launch.shm_files(private_shm) == []


def test_bench_native_measures_every_size(tmp_path, private_shm):
    record = tmp_path / "record.json"
    outcome = weir("bench", "native", "--sizes", "0,8,100000", "--repeat", "2", "--quiet", "--json", record)
    assert outcome.ok and "too few rounds" in outcome.output, outcome
    measured = json.loads(record.read_text())
    assert len(measured["cache_line_ns"]) == 2 and min(measured["cache_line_ns"]) > 1
    assert [size["bytes"] for size in measured["sizes"]] == [0, 8, 100000]
    for size in measured["sizes"]:
        times = [size[key] for key in ("half_round_trip_ns", "copy_ns", "attached_copy_ns")]
        assert all(len(samples) == 2 and min(samples) > 0 for samples in times), size
    assert launch.shm_files(private_shm) == []


def test_one_core_gives_an_error(private_shm):
    for command in (("tune",), ("bench", "native")):
        outcome = launch.run(["taskset", "-c", "0", launch.WEIR, *command], timeout=20)
        assert outcome.status == 1 and "one core only" in outcome.output, outcome


def test_bench_node_group_measures_every_operation_in_every_round(tmp_path, private_shm):
    record = tmp_path / "record.json"
    words = ("--ranks", "1,3", "--repeat", "2", "--time", "2", "--quiet", "--json", record)
    outcome = weir("bench", "node-group", *words)
    assert outcome.ok and "too few rounds" in outcome.output, outcome
    groups = json.loads(record.read_text())["groups"]
    assert [group["ranks"] for group in groups] == [1, 3]
    for group in groups:
        names = [samples["operation"] for samples in group["operations"]]
        assert names[:2] == ["flat counter", "barrier"] and "all-to-all 2 KiB" in names, names
        for samples in group["operations"]:
            assert len(samples["time_ns"]) == 2 and min(samples["time_ns"]) > 0, samples
    assert launch.shm_files(private_shm) == []


def test_bench_lock_counts_every_time_that_a_rank_gets_a_lock(tmp_path, private_shm):
    record = tmp_path / "record.json"
    outcome = weir("bench", "lock", "--ranks", "2,3", "--repeat", "2", "--time", "5", "--quiet", "--json", record)
    assert outcome.ok and "too few rounds" in outcome.output, outcome
    jobs = json.loads(record.read_text())["jobs"]
    assert [job["ranks"] for job in jobs] == [2, 3]
    for job in jobs:
        for sample in job["spin"] + job["queue"]:
            acquired = sum(sample["acquired"])
            # To get a lock and to release it are two changes at least.
            assert len(sample["acquired"]) == job["ranks"] and sample["changes"] >= 2 * acquired, sample
            assert acquired >= sample["hand_overs"] and sample["elapsed_ns"] > 0, sample
        # All want the queue lock from the begin.
        assert all(sum(sample["acquired"]) >= job["ranks"] for sample in job["queue"]), job
    assert launch.shm_files(private_shm) == []
