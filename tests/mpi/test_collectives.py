"""Collective operations of node groups (libweir-mpi.so): the results are those of the MPI, and all members choose alike."""

import re
import subprocess

import launch
import pytest
from test_small_shm import MOUNTED, may_mount

TOOL = launch.ROOT / "tests" / "mpi" / "counting.c"
SOURCE = launch.ROOT / "tests" / "mpi" / "collectives.c"
ON = ["--collectives", "on"]

PYTHON = """
import array, operator, random
from mpi4py import MPI
world = MPI.COMM_WORLD
shared, own = random.Random(3), random.Random(world.rank)
comms = [world, world.Dup(), world.Split(world.rank % 2, -world.rank)]
OPERATIONS = [(MPI.SUM, operator.add), (MPI.PROD, operator.mul), (MPI.MIN, min), (MPI.MAX, max)]

def combine(code, function, one, other):
    value = function(one, other)
    if code in "fd":
        return array.array(code, [value])[0]  # rounds to binary32
    bits = 8 * array.array(code).itemsize
    value %= 1 << bits
    return value - (1 << bits) if code in "iq" and value >> (bits - 1) else value

for step in range(400):
    comm, code, count = comms[shared.randrange(3)], shared.choice("iIqQfd"), shared.randrange(1, 700)
    (operation, function), root = shared.choice(OPERATIONS), shared.randrange(64) % comm.size
    if shared.random() < 0.8:
        count = count % 14 + 1
    draw = {"f": lambda: own.uniform(-40, 60), "d": lambda: own.uniform(-40, 60)}.get(code, lambda: own.randrange(1 << 31))
    mine = array.array(code, [draw() for _ in range(count)])
    gathered = comm.allgather(mine)
    expected = gathered[0]
    for other in gathered[1:]:
        expected = array.array(code, [combine(code, function, *pair) for pair in zip(expected, other)])
    is_ours = count * mine.itemsize <= 4096
    if code in "fd" and not is_ours:
        continue  # the MPI combines in another order
    sums, copy = array.array(code, mine), array.array(code, mine)
    comm.Allreduce(mine, sums, operation)
    assert sums == expected, ("all-reduce", step)
    comm.Allreduce(MPI.IN_PLACE, copy, operation)
    assert copy == expected, ("all-reduce in place", step)
    comm.Reduce(mine, sums if comm.rank == root else None, operation, root)
    assert comm.rank != root or sums == expected, ("reduce", step)
    data = array.array(code, mine)
    comm.Bcast(data, root)
    assert data == gathered[root], ("broadcast", step)
    many = array.array(code, mine * comm.size)
    blocks, block = array.array(code, many), array.array(code, mine)
    comm.Allgather(mine, blocks)
    assert blocks == sum(gathered, array.array(code)), ("all-gather", step)
    comm.Alltoall(MPI.IN_PLACE, blocks)
    assert blocks == gathered[comm.rank] * comm.size, ("all-to-all in place", step)
    comm.Alltoall(many, blocks)
    assert blocks == sum(gathered, array.array(code)), ("all-to-all", step)
    comm.Gather(mine, blocks if comm.rank == root else None, root)
    comm.Scatter(blocks if comm.rank == root else None, block, root)
    assert block == mine, ("gather and scatter", step)
    comm.Barrier()
world.Barrier()
print("passed", flush=True)
"""


def performed(outcome):
    found = re.findall(r"performed (-?\d+)", outcome.output)
    assert len(found) == 1, outcome
    return int(found[0])


def counting():
    return launch.compile_c(TOOL, flags=("-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"))


def program(*arguments, mpi="mpich", standard_abi=False):
    return [launch.compile_for(mpi, SOURCE, standard_abi=standard_abi), *map(str, arguments)]


@pytest.mark.parametrize("mpi,ranks", [("mpich", 1), ("mpich", 2), ("mpich", 3), ("mpich", 5), ("mpich", 8), ("intel", 4), ("openmpi", 3)])
def test_random_operations_have_the_results_of_the_mpi(over_weir, mpi, ranks):
    outcome, _ = over_weir(ranks, program("random", 1500, mpi=mpi), mpi=mpi, flags=ON, timeout=240)
    assert performed(outcome) > 500 or ranks == 1, outcome


@pytest.mark.parametrize("mpi", ["mpich", "intel"])
def test_programs_of_the_standard_abi_have_the_results_of_the_mpi(over_weir, mpi):
    outcome, _ = over_weir(4, program("random", 500, mpi=mpi, standard_abi=True), mpi=mpi, flags=ON, timeout=120)
    assert performed(outcome) > 150, outcome


@pytest.mark.parametrize("mpi", ["mpich", "intel", "openmpi"])
def test_operations_of_mpi4py_have_the_results_of_python(over_weir, mpi):
    outcome, _ = over_weir(4, [launch.python(mpi), "-c", PYTHON], mpi=mpi, flags=ON, timeout=240)
    assert outcome.output.count("passed") == 4, outcome


def test_groups_of_freed_communicators_are_used_again(over_weir):
    # A node has 256 groups. Each communicator has two, and no operation is left to the MPI.
    outcome, _ = over_weir(3, program("loops", 300), flags=ON, timeout=120)
    assert performed(outcome) == 1 + 2 * 300, outcome


def test_a_rank_in_collective_operations_that_never_waits_answers_others(over_weir):
    outcome, _ = over_weir(3, program("beside", 0), flags=ON, timeout=120)
    assert performed(outcome) > 0, outcome


def test_what_was_completed_before_a_barrier_is_seen_after_it(over_weir):
    outcome, _ = over_weir(2, program("exposed", 100), flags=ON, timeout=120)
    assert performed(outcome) >= 200, outcome


@pytest.mark.skipif(not may_mount(), reason="this user may not mount a /dev/shm of its own")
def test_groups_leave_memory_to_mailboxes():
    job = launch.weir_run(8, program("kept", 100), flags=ON)
    outcome = launch.run(["unshare", "-m", "sh", "-c", MOUNTED, "sh", "16m", *job], timeout=120)
    assert outcome.ok and not outcome.leftovers, outcome
    group = 8 * 33 << 10
    assert 5 < performed(outcome) < 100, outcome
    # A group takes at most an eighth of what is free. Lanes of mailboxes have taken more since the last group.
    assert int(re.search(r"^free (\d+)", outcome.output, re.MULTILINE)[1]) > group, outcome


def test_a_tool_that_the_user_preloads_sees_its_calls(over_weir, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", str(counting()))
    outcome, _ = over_weir(3, program("loops", 20), flags=ON, timeout=120)
    assert "counted 20" in outcome.output, outcome
    assert performed(outcome) == 1 + 20, outcome  # the barriers, which the tool does not count


def test_a_tool_behind_the_library_sees_its_calls(over_weir):
    words = ["env", f"LD_PRELOAD={launch.COLLECTIVES}:{counting()}", *program("loops", 20)]
    outcome, _ = over_weir(3, words, flags=ON, timeout=120)
    assert "counted 20" in outcome.output, outcome
    assert performed(outcome) == 0, outcome  # it is to see all, so all go to the MPI


def test_calls_of_a_program_without_mpi_reach_the_library_that_it_has(tmp_path):
    source = tmp_path / "stub.c"
    source.write_text("int MPI_Barrier(long comm) { return (int)comm + 42; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libstub.so", source], check=True)
    (tmp_path / "main.c").write_text("int MPI_Barrier(long);\nint main(void) { return MPI_Barrier(1); }\n")
    words = ["cc", "-o", tmp_path / "main", tmp_path / "main.c", f"-L{tmp_path}", "-lstub", f"-Wl,-rpath,{tmp_path}"]
    subprocess.run(words, check=True)
    outcome = launch.run([tmp_path / "main"], timeout=20, env={"LD_PRELOAD": str(launch.COLLECTIVES)})
    assert outcome.status == 43, outcome


@pytest.mark.parametrize("mpi,standard_abi", [("mpich", False), ("mpich", True), ("intel", False)])
def test_threads_use_communicators_of_their_own(over_weir, mpi, standard_abi):
    words = program("threads", 300, mpi=mpi, standard_abi=standard_abi)
    outcome, _ = over_weir(2, words, mpi=mpi, flags=ON, timeout=60)
    assert performed(outcome) > 600, outcome


def test_errors_are_those_of_the_mpi(over_weir):
    # Intel MPI checks arguments; this build of MPICH does not. The program runs under both.
    outcome, _ = over_weir(2, program("errors", 0), mpi="intel", flags=ON, timeout=60)
    assert performed(outcome) == 4, outcome


def test_a_rank_with_another_setting_means_messages_for_all(over_weir):
    script = 'test "$PMI_RANK" != 1 || export FI_WEIR_COLLECTIVES=0; exec "$@"'
    outcome, _ = over_weir(3, ["sh", "-c", script, "sh", *program("loops", 5)], flags=ON, timeout=120)
    assert performed(outcome) == 0, outcome


def without_library(rank, words):
    """The program, which has no libweir-mpi.so at one rank, as with a script that clears the environment."""
    script = f'test "${{PMI_RANK-$PMIX_RANK}}" != {rank} || unset LD_PRELOAD; exec "$@"'
    return ["sh", "-c", script, "sh", *words]


@pytest.mark.parametrize("mpi", ["mpich", "intel", "openmpi"])
def test_a_rank_without_the_library_means_messages_for_all(over_weir, mpi):
    outcome, _ = over_weir(3, without_library(1, program("loops", 5, mpi=mpi)), mpi=mpi, flags=ON, timeout=60)
    assert performed(outcome) == 0, outcome


def test_communicators_without_that_rank_have_groups(over_weir):
    # Of the communicators of rank 0, one has no member with an odd rank.
    outcome, _ = over_weir(6, without_library(1, program("random", 300)), flags=ON, timeout=120)
    assert 0 < performed(outcome) < 300, outcome


def test_ranks_beside_spawned_processes_have_groups(over_weir):
    outcome, _ = over_weir(3, program("spawn", 1), flags=ON, timeout=60)
    assert performed(outcome) == 3, outcome


def test_a_spawned_process_is_not_taken_for_the_rank_of_that_number(over_weir):
    # Rank 1 has no library. The spawned process of rank 1 has it.
    outcome, _ = over_weir(3, without_library(1, program("spawn", 2)), flags=ON, timeout=60)
    assert performed(outcome) == 0, outcome


def test_fortran_bindings_that_pass_the_library_by_mean_messages_for_all(over_weir, tmp_path, monkeypatch):
    # Those of Open MPI call PMPI_Barrier. Here is no such program, so a library has the name of a binding.
    source, library = tmp_path / "bindings.c", tmp_path / "libbindings.so"
    source.write_text("void mpi_barrier_(void) {}\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    outcome, _ = over_weir(2, program("loops", 5, mpi="openmpi"), mpi="openmpi", flags=ON, timeout=60)
    assert performed(outcome) == 0, outcome


def test_without_the_setting_ranks_do_not_load_the_library(over_weir):
    outcome, _ = over_weir(2, program("random", 50), flags=["--collectives", "off"], timeout=60)
    assert performed(outcome) == -1, outcome


# The launcher ends all ranks when it sees one die. This shell hides the death for some seconds.
OUTLIVED = ["sh", "-c", '"$@"; status=$?; sleep 3; exit $status', "sh"]


@pytest.mark.parametrize(
    "last,call,standard_abi",
    [(30, "MPI_Barrier", False), (31, "MPI_Bcast", False), (32, "MPI_Allreduce", False), (31, "MPI_Bcast", True)],
)
def test_a_killed_member_is_an_error_and_no_hang(tmp_path, private_shm, last, call, standard_abi):
    """It dies before a barrier, before a broadcast of which it is the root, and before an all-reduce."""
    errors = tmp_path / "errors"
    errors.mkdir()
    words = launch.weir_run(4, [*OUTLIVED, *program("die", last, errors, standard_abi=standard_abi)], flags=ON)
    outcome = launch.run(words, timeout=60)
    assert outcome.status not in (0, None), outcome
    assert not outcome.leftovers, outcome
    texts = {path.name: path.read_text() for path in errors.iterdir()}
    assert texts == dict.fromkeys("012", "Process failed"), outcome
    line = f"weir: {call}: rank 3 of the communicator has failed: its process has ended"
    assert line in outcome.output, outcome
    assert launch.run([launch.WEIR, "clean"], timeout=20).ok
    assert launch.shm_files(private_shm) == [], "mailboxes are left after the run"


@pytest.mark.parametrize("microseconds", [1, 3000, 200_000])
def test_a_rank_that_is_killed_at_any_moment_is_an_error_at_all_others(tmp_path, private_shm, microseconds):
    """`kill -9` in the middle of operations of all kinds. The others end within the limit of the launcher."""
    errors = tmp_path / "errors"
    errors.mkdir()
    words = launch.weir_run(4, [*OUTLIVED, *program("killed", microseconds, errors)], flags=ON)
    outcome = launch.run(words, timeout=60)
    assert outcome.status not in (0, None) and not outcome.leftovers, outcome
    texts = {path.name: path.read_text() for path in errors.iterdir()}
    assert texts == dict.fromkeys("012", "Process failed"), outcome
    assert "rank 3 of the communicator has failed: its process has ended" in outcome.output, outcome


LATE = """
import time
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Barrier()
for step in range(10):
    if world.rank == 1:
        time.sleep(0.02)
    world.Barrier()
"""


def test_the_report_names_the_skew_of_ranks_that_wait_and_the_rank_that_comes_late(over_weir):
    outcome, report = over_weir(3, [launch.python("mpich"), "-c", LATE], flags=ON, timeout=60)
    skews = []
    for rank in report["ranks"]:
        [barriers] = [entry for entry in rank["operations"] if entry["operation"] == "barrier" and entry["blocking"]]
        assert barriers["executor"] == "node" and barriers["skew_known"] == barriers["count"] >= 11, barriers
        assert not barriers["skew_is_bound"] and barriers["skew_ns"] <= barriers["time_ns"], barriers
        skews.append(barriers["skew_ns"] / 1e6)
    assert skews[0] >= 150 and skews[2] >= 150 and skews[1] < 75, skews
    assert re.search(r"barrier +shared memory", outcome.output), outcome
    assert re.search(r"skew: of .* in barrier operations, .*: rank 1 comes late", outcome.output), outcome
