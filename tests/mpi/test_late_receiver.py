"""Senders may end before the receiver receives: all messages of completed sends arrive."""

import launch
import pytest

SOURCE = launch.ROOT / "tests" / "mpi" / "late.c"
# Time limit of closing for incomplete messages. The receivers here come ten times later.
CLOSE = ("--set", "FI_WEIR_CLOSE_MS=100")
SMALL = ("--set", "FI_WEIR_UNEXPECTED_BUDGET=65536")


@pytest.mark.parametrize("flow", ["unlimited", "hardware", "static", "static-connection", "adaptive", "dynamic", "demand"])
@pytest.mark.parametrize("budget", [(), SMALL], ids=["default", "64 KiB"])
def test_a_late_receiver_gets_all_messages(over_weir, flow, budget):
    # More messages than a lane holds, so most are in bounce buffers of the senders, which close.
    program = [launch.compile_c(SOURCE), "1", "8000", "256", "anybody"]
    outcome, _ = over_weir(3, program, flags=["--flow", flow, *CLOSE, *budget], timeout=60)
    assert "all 16000 arrived" in outcome.output, outcome
    assert "waits to close: live receivers have not taken" in outcome.output, outcome


@pytest.mark.parametrize("messages,message_bytes", [(1, 8), (2000, 2048), (400, 4096), (3, 100_000)])
def test_a_late_receiver_gets_messages_of_every_size(over_weir, messages, message_bytes):
    program = [launch.compile_c(SOURCE), "1", str(messages), str(message_bytes), "directed"]
    outcome, _ = over_weir(4, program, flags=[*CLOSE, *SMALL], timeout=60)
    assert f"all {3 * messages} arrived" in outcome.output, outcome


def test_a_sender_gives_up_a_receiver_that_takes_nothing(private_shm):
    program = [launch.compile_c(SOURCE), "30", "8000", "256", "anybody"]
    flags = [*CLOSE, "--set", "FI_WEIR_LINGER_S=1"]
    outcome = launch.run(launch.weir_run(2, program, flags=flags), timeout=60)
    lines = [line for line in outcome.output.splitlines() if "gives up" in line]
    assert len(lines) == 1 and lines[0].startswith("weir: rank 1 closes and gives up "), outcome
    assert lines[0].endswith(" to rank 0; set FI_WEIR_LINGER_S to wait longer"), outcome
    assert not outcome.ok, "rank 0 cannot get these messages"
