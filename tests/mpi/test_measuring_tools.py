"""`weir bench paired` and tools/shares.py: they run, and their results belong to what was asked."""

import json
import re
import shutil
import subprocess

import launch
import pytest


def paired(tmp_path, *words):
    """Runs `weir bench paired`. Returns {contender: {measure: samples}} and the table."""
    record = tmp_path / "record.json"
    outcome = launch.run([launch.WEIR, "bench", "paired", *words, "--quiet", "--json", record], timeout=120)
    assert outcome.ok, outcome
    rows = json.loads(record.read_text())["rows"]
    return {row["contender"]: {value["measure"]: value for value in row["values"]} for row in rows}, outcome.output


def may_sample():
    if shutil.which("perf") is None:
        return False
    words = ["perf", "record", "-q", "-a", "-e", "cpu-clock", "-o", "/dev/null", "--", "true"]
    return subprocess.run(words, capture_output=True, timeout=30).returncode == 0


def test_paired_compares_settings_and_the_lower_bound_round_by_round(tmp_path, private_shm):
    contenders = ["weir", "weir:FI_WEIR_ATTACH=start", "floor"]
    found, table = paired(tmp_path, "collectives 0.02 64", *contenders, "--ranks", "4", "--beside", "2", "--rounds", "2")
    assert list(found) == contenders
    for name in contenders:
        for measure in ("barrier us", "allreduce us", "alltoall us"):
            value = found[name][measure]
            assert len(value["samples"]) == len(value["beside"]) == 2 and min(value["samples"]) > 0, value
            row = next(line for line in table.splitlines() if line.split() and f" {measure} " in line and f" {name} " in line)
            # Median, ratio to the reference and ratio to 2 ranks have quartiles.
            assert len(re.findall(r"\(\S+ \.\. \S+\)", row)) == (2 if name == "weir" else 3), row
    assert launch.shm_files(private_shm) == []


def test_paired_measures_each_end_of_a_stream(tmp_path, private_shm):
    found, _ = paired(tmp_path, "ends 0.05 2048", "weir", "--ranks", "2", "--rounds", "1")
    steps = [f"ends 2048 B {step}_ns" for step in ("send", "post", "take")]
    assert list(found["weir"]) == steps
    assert all(10 < found["weir"][step]["samples"][0] < 1e6 for step in steps), found


def test_paired_runs_another_build_of_the_plug_in(tmp_path, private_shm):
    other = tmp_path / "libweir-other-fi.so"
    other.write_bytes(launch.PROVIDER.read_bytes())
    contenders = ["weir", f"weir:WEIR_PROVIDER_PATH={other}"]
    found, _ = paired(tmp_path, "latency 0.02 8", *contenders, "--ranks", "2", "--rounds", "1")
    assert list(found) == contenders


@pytest.mark.parametrize("words", [["latency 0.1 8", "floor"], ["latency 0.1 8", "pigeons"], ["latency 0.1 8", "weir:X"],
                                   ["latency 0.1 8", "ucx:WEIR_PROVIDER_PATH=/tmp"]])
def test_paired_rejects_invalid_contenders(words):
    outcome = launch.run([launch.WEIR, "bench", "paired", *words], timeout=30)
    assert outcome.status == 2 and len(outcome.output.strip().splitlines()) == 1, outcome


@pytest.mark.skipif(not may_sample(), reason="needs perf, and permission to sample all cores")
def test_processor_shares_add_up_to_all():
    words = [launch.ROOT / "tools/shares.py", "--runs", "1", "--ranks", "2", "stream 0.2 8"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    medians = [float(value) for value in re.findall(r"([0-9.]+) \(", done.stdout)]
    assert len(medians) == 6 and 99 < sum(medians) < 101, done.stdout


def test_floor_rejects_invalid_rank_counts():
    program = launch.compile_c(launch.ROOT / "tests" / "mpi" / "floor.c")
    for words in (["6", "1", "8"], ["8", "0", "8"], ["8", "1", "65537"], ["8"]):
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=10, env=launch.plain_environment("mpich"))
        assert (done.returncode, done.stdout) == (2, "") and "a power of two up to 64" in done.stderr
