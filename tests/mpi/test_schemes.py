"""A program that checks its data runs correctly under each scheme, and counters show that the scheme was in use."""

import imb
import launch
import pytest
import stress

QUICK = ["-msglog", "0:13", "-iter", "10", "-time", "100"]


def few(scheme, **parameters):
    """Flags for few buffers, so that senders find none free."""
    flags = ["--flow", scheme]
    for name, value in parameters.items():
        flags += ["--set", f"FI_WEIR_{name}={value}"]
    return flags


SCHEMES = {  # flags of `weir run`, and a condition on the counters of all ranks
    "hardware": (few("hardware", PREPOSTED=4),
                 lambda counted: counted["rnr_naks"] > 0 and counted["rnr_retries"] > 0 and counted["credit_packets_sent"] == 0),
    "static-connection": (few("static-connection", PREPOSTED=4),
                          lambda counted: counted["credit_packets_sent"] > 0 and counted["piggybacked_credits_sent"] > 0),
    "adaptive": (few("adaptive", ADAPTIVE_START=1, ADAPTIVE_MAX=64),
                 lambda counted: counted["peak_quota_slots"] == 64),
    "adaptive, linear": (few("adaptive", ADAPTIVE_START=1, ADAPTIVE_MAX=200, ADAPTIVE_GROWTH="linear:1"),
                         lambda counted: 1 < counted["peak_quota_slots"] <= 200),
}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", SCHEMES)
def test_every_byte_is_correct(over_weir, name, ranks):
    flags, shown = SCHEMES[name]
    program = [launch.compile_c(stress.SOURCE), "--seed", 40 + ranks, "--rounds", 10, "--max-bytes", 1 << 18]
    outcome, report = over_weir(ranks, program, flags=flags, timeout=120)
    assert "all correct" in outcome.output, outcome
    assert shown(report["total"]["counters"]), report["total"]


@pytest.mark.parametrize("scheme", ["unlimited", "hardware", "static", "static-connection", "adaptive", "dynamic", "demand"])
def test_all_benchmarks_complete_under_every_scheme(over_weir, scheme):
    outcome, _ = over_weir(4, imb.program(4, imb.BENCHMARKS["IMB-MPI1"], *QUICK), flags=["--flow", scheme], timeout=120)
    assert imb.complete(outcome.output, imb.BENCHMARKS["IMB-MPI1"]), outcome


NEVER_READY = """
import os, sys, time
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    time.sleep(60)  # outside MPI: no packet is retrieved
for number in range(100):
    MPI.COMM_WORLD.Send(bytearray(6000), dest=1)  # too long to be injected, so MPI learns of the failure
print("rank", MPI.COMM_WORLD.rank, "continued")
"""


def test_a_receiver_that_is_never_ready_fails_the_send(private_shm, tmp_path):
    report = tmp_path / "report.json"
    flags = few("hardware", PREPOSTED=32, RNR_TIMER_US=300000, RNR_RETRIES=6)  # 2 s, enough for MPI_Init
    # MPICH writes the error and then asks mpiexec to kill all ranks. Ranks write to a file: mpiexec can lose output.
    errors = tmp_path / "errors"
    program = [launch.python("mpich"), "-c", NEVER_READY, errors]
    outcome = launch.run(launch.weir_run(2, program, flags=flags, report=report), timeout=50)
    assert outcome.status not in (0, None) and "continued" not in outcome.output, outcome
    assert "Receiver not ready" in errors.read_text(), outcome
    counted = launch.read_report(report)["total"]["counters"]
    assert counted["rnr_naks"] >= 5, counted  # as last written before the rank was killed
    assert launch.shm_files(private_shm) == []
