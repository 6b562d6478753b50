"""Intel's MPI benchmarks under Open MPI, by the translation of tools/imb_openmpi, with few sizes. `make imb` runs all sizes."""

import pathlib

import imb
import imb_openmpi
import launch
import pytest

QUICK = ["-msglog", "3:4", "-iter", "5", "-time", "100"]
FOLDER = pathlib.Path(__file__).parent


def test_the_translation_knows_the_values_of_mpich():
    outcome = launch.run([launch.compile_c(FOLDER / "mpich_values.c")], env=launch.plain_environment("mpich"), timeout=20)
    assert outcome.ok and not outcome.output, outcome


@pytest.mark.parametrize("mpi,collectives", [("mpich", "off"), ("openmpi", "off"), ("openmpi", "on")])
def test_a_program_for_mpich_gets_the_same_results_under_open_mpi(over_weir, mpi, collectives):
    program = launch.compile_c(FOLDER / "translated.c")
    program = imb_openmpi.translated(program) if mpi == "openmpi" else program
    outcome, report = over_weir(3, [program], mpi=mpi, flags=["--collectives", collectives], timeout=30)
    assert outcome.output.count(": 0 wrong") == 3, outcome
    assert all((rank["group_operations"] > 0) == (collectives == "on") for rank in report["ranks"]), report["ranks"]
    assert all(rank["counters"]["messages_sent"] > 0 for rank in report["ranks"])


@pytest.mark.parametrize("name", imb.BENCHMARKS)
def test_each_program_completes(over_weir, name):
    benchmarks = {"IMB-MPI1": ["PingPong", "Exchange", "Allreduce", "Alltoallv"], "IMB-P2P": ["PingPing", "Corandom"],
                  "IMB-RMA": ["Accumulate", "Exchange_put"], "IMB-NBC": ["Ibcast", "Iallreduce", "Igatherv"]}[name]
    program = imb.program(2, benchmarks, *QUICK, name=name, mpi="openmpi")
    outcome, report = over_weir(2, program, mpi="openmpi", timeout=60)
    assert imb.complete(outcome.output, benchmarks), outcome
    carried = "remote_operations" if name == "IMB-RMA" else "messages_sent"
    assert all(rank["counters"][carried] >= 10 for rank in report["ranks"]), report["ranks"]
