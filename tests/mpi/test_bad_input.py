"""Wrong settings and commands give a one-line error and a non-zero status before anything starts."""

import stat

import launch
import pytest


@pytest.fixture
def witness(tmp_path):
    """A program that writes a file when it starts."""
    trace = tmp_path / "started"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho started >> {trace}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program, trace


def refused(words, env=None):
    outcome = launch.run([launch.WEIR, "run", *words], timeout=20, env=env)
    assert outcome.status not in (0, None), outcome
    return outcome


WRONG = {  # flags of `weir run` with 4 ranks, and words of the error message
    "unknown scheme": (["--flow", "magic"], ["FI_WEIR_FLOW", "magic", "unlimited", "static"]),
    "mailbox too small": (["--mailbox-slots", "3"], ["FI_WEIR_MAILBOX_SLOTS", "3", "8"]),
    "mailbox too small for one credit slot": (["--mailbox-slots", "3", "--credit-slots", "1"],
                                              ["FI_WEIR_MAILBOX_SLOTS", "3", "4"]),
    "out of range": (["--credit-slots", "17"], ["FI_WEIR_CREDIT_SLOTS", "17", "1 to 16"]),
    "negative": (["--set", "FI_WEIR_EAGER_BYTES=-1"], ["FI_WEIR_EAGER_BYTES", "-1", "0 to"]),
    "no number": (["--set", "FI_WEIR_SLEEP_US=soon"], ["FI_WEIR_SLEEP_US", "soon", "0 to"]),
    "no switch": (["--set", "FI_WEIR_CROSS_MEMORY=maybe"], ["FI_WEIR_CROSS_MEMORY", "maybe", "0, 1"]),
    "retries out of range": (["--set", "FI_WEIR_RNR_RETRIES=8"], ["FI_WEIR_RNR_RETRIES", "8", "0 to 7"]),
    "no growth": (["--set", "FI_WEIR_ADAPTIVE_GROWTH=linear:0"], ["FI_WEIR_ADAPTIVE_GROWTH", "linear:0", "exponential"]),
    "threshold beyond the buffers": (["--set", "FI_WEIR_PREPOSTED=4", "--set", "FI_WEIR_ECM_THRESHOLD=5"],
                                     ["FI_WEIR_ECM_THRESHOLD", "5", "FI_WEIR_PREPOSTED=4"]),
    "misspelled": (["--set", "FI_WEIR_MAILBOX_SLOT=9"], ["FI_WEIR_MAILBOX_SLOT", "FI_WEIR_MAILBOX_SLOTS"]),
    "no peers": (["--set", "FI_WEIR_MAX_PEERS=0"], ["FI_WEIR_MAX_PEERS", "0", "4096"]),
    "no such directory": (["--set", "FI_WEIR_SHM_DIR=/no/such"], ["FI_WEIR_SHM_DIR", "/no/such"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_named_before_the_program_starts(witness, name):
    program, trace = witness
    flags, named = WRONG[name]
    outcome = refused(["-n", "4", "--mpi", "mpich", *flags, "--", program])
    lines = [line for line in outcome.output.splitlines() if line.strip()]
    assert len(lines) == 1, outcome
    assert all(word in lines[0] for word in named), outcome
    assert not trace.exists(), "the program was started"


def test_a_wrong_setting_in_the_environment_is_named(witness):
    program, trace = witness
    outcome = refused(["-n", "2", "--mpi", "mpich", "--", program], env={"FI_WEIR_FLOW": "magic"})
    assert "FI_WEIR_FLOW=magic" in outcome.output, outcome
    assert not trace.exists()


@pytest.mark.parametrize("ranks", ["0", "-1", "many"])
def test_a_wrong_number_of_ranks_is_named(witness, ranks):
    program, trace = witness
    outcome = refused([f"-n{ranks}", "--mpi", "mpich", "--", program])
    assert ranks in outcome.output, outcome
    assert not trace.exists()


def test_a_missing_program_is_named():
    outcome = refused(["-n", "2", "--mpi", "mpich", "--", "/no/such/program"])
    assert len(outcome.output.splitlines()) == 1 and "/no/such/program" in outcome.output, outcome


@pytest.mark.parametrize("mpi", ["/no/such/mpi", "lammpi"])
def test_an_unknown_mpi_is_named(witness, mpi):
    program, trace = witness
    outcome = refused(["-n", "2", "--mpi", mpi, "--", program])
    assert len(outcome.output.splitlines()) == 1 and mpi in outcome.output, outcome
    assert not trace.exists()


def test_a_host_without_mpi_gives_an_error(witness, tmp_path):
    program, trace = witness
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    # The host may have an MPI in /usr/bin.
    empty = {"PATH": str(nothing), "WEIR_ENV_PATH": str(nothing), "VIRTUAL_ENV": "", "I_MPI_ROOT": "", "WEIR_MPI": ""}
    outcome = refused(["-n", "2", "--", program], env=empty)
    assert len(outcome.output.splitlines()) == 1 and "no MPI found" in outcome.output, outcome
    assert not trace.exists()


def test_the_provider_rejects_wrong_settings(private_shm):
    """Without `weir run` the MPI fails, and one of the ranks prints the reason."""
    env = launch.plain_environment("mpich")
    env |= {"FI_PROVIDER_PATH": str(launch.PROVIDER.parent), "FI_PROVIDER": "weir", "MPIR_CVAR_CH4_NETMOD": "ofi",
            "MPIR_CVAR_NOLOCAL": "1", "FI_WEIR_FLOW": "magic", "FI_WEIR_SHM_DIR": str(private_shm)}
    words = [*launch.plain_mpiexec("mpich", 4), launch.imb(), "-msglog", "0:3", "PingPong"]
    outcome = launch.run(words, timeout=60, env=env)
    assert not outcome.ok, outcome
    lines = [line for line in outcome.output.splitlines() if "FI_WEIR_FLOW=magic" in line]
    assert len(lines) == 1 and "allowed are unlimited, " in lines[0], outcome
