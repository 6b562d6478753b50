"""Jobs with more ranks than lanes complete, and memory is released after a burst."""

import pathlib
import re

import launch
import pytest
import stress

BURST = pathlib.Path(__file__).with_name("burst.c")
# Memory of a lane among 8 ranks, which have 8192 slots of 64 B each.
LANE_KIB = 516


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("flow", ["demand", "dynamic", "static", "adaptive", "hardware", "unlimited"])
def test_jobs_with_fewer_lanes_than_ranks_complete(over_weir, lanes, flow):
    program = [launch.compile_c(stress.SOURCE), "--seed", 40 + lanes, "--rounds", 10, "--max-bytes", 1 << 18]
    flags = ["--set", f"FI_WEIR_MAX_PEERS={lanes}", "--set", f"FI_WEIR_FLOW={flow}"]
    outcome, report = over_weir(8, program, flags=flags, timeout=120)
    assert "all correct" in outcome.output, outcome
    assert report["total"]["counters"]["lanes_returned"] > 50, "no lane was returned"


@pytest.mark.parametrize("flags", [(), ("FI_WEIR_IDLE_BYTES=0",), ("FI_WEIR_MAX_PEERS=3", "FI_WEIR_IDLE_BYTES=0")], ids=" ".join)
def test_memory_is_released_after_a_burst(over_weir, flags):
    few_lanes = len(flags) == 2
    flags = [word for setting in flags for word in ("--set", setting)]
    outcome, report = over_weir(8, [launch.compile_c(BURST), "3"], flags=flags, timeout=120)
    pattern = r"memory rank (\d+) after (\w+ \d): anonymous (\d+) KiB, shared (\d+) KiB"
    memory = {(int(rank), when): (int(anonymous), int(shared))
              for rank, when, anonymous, shared in re.findall(pattern, outcome.output)}
    assert len(memory) == 8 * 5, outcome
    for rank in range(8):
        # MPI keeps some memory after the first burst. So private memory is compared with that after the first pause.
        before, after = sum(memory[rank, "pause 0"]), sum(memory[rank, "pause 1"])
        assert after <= 1.10 * before, (rank, memory)
        start, burst, pause = (memory[rank, when][1] for when in ("start 0", "burst 1", "pause 1"))
        # The first lane is reserved from the start, and counts as soon as it has been used.
        assert pause <= 1.10 * (start + LANE_KIB), (rank, memory)
        if not few_lanes:
            assert pause < burst, "shared memory is not released"
    assert report["total"]["peak_mailbox_bytes"] > 8 * 8192
