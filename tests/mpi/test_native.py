"""The native interface under launchers of MPIs: the program in C, by the library and header of `make build`."""

import re
import subprocess

import launch
import pytest

SOURCE = launch.ROOT / "crates" / "native" / "examples" / "tasks.c"
LOST = 3


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    target = tmp_path_factory.mktemp("native") / "tasks"
    library = launch.OUT / "lib"
    options = ["-O2", "-Wall", "-Wextra", "-Werror", f"-I{launch.OUT / 'include'}", f"-L{library}", f"-Wl,-rpath,{library}"]
    subprocess.run(["cc", *options, "-o", target, SOURCE, "-lweir"], check=True)
    return target


def run(mpi, ranks, program, **environment):
    command = [*launch.plain_mpiexec(mpi, ranks), program]
    return launch.run(command, timeout=120, env={**launch.plain_environment(mpi), **environment})


def check(outcome, ranks, private_shm):
    assert outcome.ok, outcome
    found = re.findall(rf"rank (\d+) of {ranks}: pi is 3\.1416", outcome.output)
    assert sorted(map(int, found)) == list(range(ranks)), outcome
    assert launch.shm_files(private_shm) == [], "mailboxes are left after the run"


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("mpi", ["mpich", "intel"])
def test_ranks_of_a_launcher_with_pmi_find_each_other(program, private_shm, mpi, ranks):
    check(run(mpi, ranks, program), ranks, private_shm)


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_a_directory_works_under_any_launcher(program, private_shm, tmp_path, mpi):
    check(run(mpi, 3, program, WEIR_EXCHANGE_DIR=str(tmp_path)), 3, private_shm)
    assert list(tmp_path.iterdir()) == [], "files of the exchange are left"


def test_without_a_way_to_exchange_the_error_names_them(program, private_shm):
    outcome = run("openmpi", 2, program)
    assert outcome.status not in (0, None), outcome
    assert "set WEIR_EXCHANGE_DIR" in outcome.output, outcome
