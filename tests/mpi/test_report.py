"""Diagnostics of a run: the page of `weir run --report`, `weir explain`, and the stall line."""

import concurrent.futures
import json
import pathlib
import re
import subprocess
import time
import xml.etree.ElementTree

import launch
import pytest

SLOW = pathlib.Path(__file__).with_name("slow.c")
LATE = SLOW.with_name("late.c")


def slow(seconds, messages, size):
    return [launch.compile_c(SLOW), seconds, messages, size]


def data_of(page):
    return json.loads(re.search(r'id="weir-data">(.*?)</script>', page, re.S).group(1))


@pytest.mark.parametrize("flow", ["static", "unlimited"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_report_page_equals_the_counters(over_weir, tmp_path, ranks, flow):
    place = tmp_path / "page"
    outcome, report = over_weir(ranks, slow(0.5, 2000, 2000), timeout=60, flags=["--report", place, "--flow", flow])
    assert "all correct" in outcome.output, outcome
    assert [file.name for file in place.iterdir()] == ["report.html"]
    page = (place / "report.html").read_text()
    data = data_of(page)
    for rank in range(ranks):
        counters = report["ranks"][rank]["counters"]
        assert data["job"]["ranks"][rank]["counters"] == counters
        by_kind = data["endpoints"][rank]["packets_by_kind"]
        assert sum(by_kind.values()) == counters["packets_sent"]
        assert by_kind["credit"] == counters["credit_packets_sent"]
        assert by_kind["eager"] >= (2000 if rank else 0)
        waited = sum(pair["stalled_ns"] for pair in data["pairs"] if pair["sender"] == str(rank))
        assert waited == counters["stalled_ns"], "the stalls of all pairs are those of the rank"
        if rank:
            assert waited > 300_000_000, "the receiver was outside MPI for 500 ms"
            # The area under the curve is the counted time.
            width = data["span_s"] / len(data["times_s"])
            curve = data["endpoints"][rank]["peers_waited_for"]
            assert sum(value or 0 for value in curve) * width == pytest.approx(waited / 1e9, rel=0.02)
    memory = data["endpoints"][0]["memory"]
    most = {what: max(value or 0 for value in series) for what, series in memory.items()}
    assert most["mailbox"] == report["ranks"][0]["mailbox_bytes"]
    assert most["process (RssAnon + RssShmem)"] > 1 << 20
    assert most["unexpected payload"] <= report["ranks"][0]["counters"]["peak_unexpected_bytes"]
    figures = re.findall(r"<svg.*?</svg>", page, re.S)
    # Figures of stalls (and of pairs, if there are several), two of credits for each rank (one without credits), memory, packets,
    # and two of collective operations: by kind and by rank.
    credits = 2 if flow == "static" else 1
    assert report["total"]["operations"], "the program ends with a barrier"
    assert len(figures) == (1 if ranks == 2 else 2) + credits * ranks + 5 + 1 + 2
    for figure in figures:
        xml.etree.ElementTree.fromstring(figure)


def explain(*words):
    done = subprocess.run([launch.WEIR, "explain", *words], capture_output=True, text=True, timeout=20)
    return done.returncode, done.stdout


def test_a_stall_of_two_seconds_is_explained_by_the_log_and_by_the_command(over_weir, tmp_path, monkeypatch):
    # `weir explain` finds the job in the directory for temporary files.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert explain()[0] == 0, "no job runs"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        run = pool.submit(over_weir, 3, slow(2.5, 3000, 2000), flags=["--flow", "static"], timeout=60)
        deadline = time.monotonic() + 20
        told = (0, "")
        while told[1].count(" for credit from ") < 2 and not run.done() and time.monotonic() < deadline:
            time.sleep(0.05)
            told = explain()
        status, text = explain("--json")
        assert (told[0], status) == (3, 3), f"{told} {text}"
        outcome, _ = run.result()
    waiting = r"rank 1 has waited \d\.\d s for credit from rank 0: \d+ messages? \([\d.]+ [KM]?i?B\) behind, \d+ of \d+ credits left"
    away = r"\d+ granted since the start, \d+ spent; rank 0 has not polled for \d\.\d s"
    cause = "cause: rank 1, rank 2 wait for rank 0, which waits for no credit"
    assert re.search(waiting + ".*" + away, told[1]), told
    assert cause in told[1], told
    (job,) = json.loads(text)["jobs"]
    stalls = {stall["sender"]: stall for stall in job["stalls"]}
    assert set(stalls) == {"rank 1", "rank 2"}
    for stall in stalls.values():
        assert stall["receiver"] == "rank 0" and stall["waited_s"] >= 1 and stall["backlog_messages"] > 0
        assert stall["quota_slots"] + stall["granted_total"] - stall["spent_total"] == stall["credits"]
    assert job["causes"] == [cause]
    # Each sender logs it once, because the stall ends before the line would be repeated.
    for sender in (1, 2):
        lines = re.findall(rf"^weir: rank {sender} has waited 1\.\d s for credit from rank 0.*$", outcome.output, re.M)
        assert len(lines) == 1, outcome
        assert "; rank 0 has not polled for" in lines[0]


def test_loans_and_the_queue_of_a_flood_are_explained_and_reported(over_weir, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    place = tmp_path / "page"
    # The mailbox is smaller than what seven senders want. Some looks find a queue, the first of them nearly always when the
    # flood begins. With two senders there are runs without any.
    flags = ["--flow", "demand", "--mailbox-slots", "128", "--report", place]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        run = pool.submit(over_weir, 8, slow(0.5, 60000, 2000), flags=flags, timeout=100)
        text = ""
        while "; queue: rank" not in text and not run.done():
            time.sleep(0.02)
            text = explain("--after", "0")[1]
        outcome, report = run.result()
    assert "all correct" in outcome.output, outcome
    assert re.search(r"rank 0 lends 128 slots: \d+ free, \d+ idle at senders; queue: rank [1-7] \(\d+ slots?\)", text), text
    lender = report["ranks"][0]["lending"]
    assert lender["region_slots"] == 128 and lender["lent_slots"] > 60000 and lender["demands_queued"] > 100
    # The table and the page have the same numbers.
    assert report["total"]["lending"]["lent_slots"] >= lender["lent_slots"]
    assert f"loans: {report['total']['lending']['lent_slots']:,} slots lent on demand" in outcome.output, outcome
    page = (place / "report.html").read_text()
    assert data_of(page)["job"]["ranks"][0]["lending"] == lender
    assert ">Loans</h2>" in page and "demand for its slots, by sender" in page


def test_a_sender_without_bounce_buffers_logs_it(over_weir):
    small = ["--set", "FI_WEIR_UNEXPECTED_BUDGET=65536", "--set", "FI_WEIR_BOUNCE_BYTES=65536", "--set", "FI_WEIR_STALL_MS=500"]
    program = [launch.compile_c(LATE), "3", "10000", "2048", "anybody"]
    outcome, _ = over_weir(2, program, flags=small, timeout=60)
    assert "all 10000 arrived" in outcome.output, outcome
    limit = r"copies of messages for receivers without room up to its limit of 64 KiB \(FI_WEIR_BOUNCE_BYTES\)"
    until = r"until rank 0 receives, which has not taken \d+ messages"
    assert re.search(rf"^weir: rank 1 holds {limit}, and no receiver has taken one for \d+ ms: .* {until}$", outcome.output, re.M), outcome


def test_short_stalls_are_not_logged_and_the_log_can_be_disabled(over_weir):
    outcome, report = over_weir(2, slow(0.3, 1000, 2000), timeout=60)
    assert " for credit from " not in outcome.output, outcome
    assert report["total"]["counters"]["stalled_ns"] > 0
    flags = ["--set", "FI_WEIR_STALL_MS=0"]
    outcome, _ = over_weir(2, slow(1.6, 1000, 2000), timeout=60, flags=flags)
    assert " for credit from " not in outcome.output, outcome
