"""The tools that say where time goes: they run, and what they print is about what they were asked for."""

import re
import shutil
import subprocess

import launch
import pytest

TOOLS = launch.ROOT / "tools"


def tool(name, *words):
    done = subprocess.run([TOOLS / name, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def may_sample():
    if shutil.which("perf") is None:
        return False
    words = ["perf", "record", "-q", "-a", "-e", "cpu-clock", "-o", "/dev/null", "--", "true"]
    return subprocess.run(words, capture_output=True, timeout=30).returncode == 0


def test_paired_shows_the_lower_bound_of_collectives():
    text = tool("paired.py", "--ranks", "4", "--rounds", "2", "collectives 0.02 64", "now", "floor")
    weir, floor = text.split("\nfloor\n")
    for line in ("barrier us", "allreduce us", "alltoall us"):
        assert re.search(rf"{line} +[0-9.]+ \(", weir), text
        assert re.search(rf"{line} +[0-9.]+ \(.* x +[0-9.]+ \(", floor), text


def test_each_end_of_a_stream_is_measured_alone():
    text = tool("paired.py", "--ranks", "2", "--rounds", "1", "ends 0.05 2048", "now")
    steps = re.findall(r"(send|post|take)_ns +([0-9.]+)", text)
    assert [name for name, _ in steps] == ["send", "post", "take"]
    assert all(10 < float(ns) < 1e6 for _, ns in steps), text


@pytest.mark.skipif(not may_sample(), reason="needs perf, and to be allowed to sample all cores")
def test_processor_shares_add_up_to_all():
    text = tool("shares.py", "--runs", "1", "--ranks", "2", "stream 0.2 8")
    medians = [float(value) for value in re.findall(r"([0-9.]+) \(", text)]
    assert len(medians) == 6 and 99 < sum(medians) < 101, text


def test_floor_rejects_invalid_rank_counts():
    program = launch.compile_c(launch.ROOT / "tests" / "mpi" / "floor.c")
    for words in (["6", "1", "8"], ["8", "0", "8"], ["8", "1", "65537"], ["8"]):
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=10, env=launch.plain_environment("mpich"))
        assert (done.returncode, done.stdout) == (2, "") and "a power of two up to 64" in done.stderr
