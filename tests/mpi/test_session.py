"""Ranks of MPICH's launcher stay in one session over weir, without other effects (crates/session)."""

import ast
import re

import launch

PROGRAM = """
import os, signal, subprocess
from mpi4py import MPI
own = os.getpid()
loaded = "libweir-session" in open("/proc/self/maps").read()
child = subprocess.run(["sh", "-c", "ps -o sid= -p $$; echo $LD_PRELOAD; grep -c libweir-session /proc/$$/maps"],
                       capture_output=True, text=True, start_new_session=True)
os.kill(own, signal.SIGTSTP)  # discarded
seen = dict(own=own, session=os.getsid(0), group=os.getpgid(0), preload=os.environ.get("LD_PRELOAD"), loaded=loaded,
            child=child.stdout.split())
for line in MPI.COMM_WORLD.gather(seen) or []:
    print("seen", line)
"""


def ranks(over_weir, collectives):
    python = launch.env_dir("mpich") / "bin" / "python"
    outcome, _ = over_weir(3, [python, "-c", PROGRAM], flags=["--collectives", collectives], timeout=60)
    seen = [ast.literal_eval(line) for line in re.findall(r"seen (.*)", outcome.output)]
    assert len(seen) == 3, outcome
    return seen


def test_ranks_share_a_session_and_have_process_groups_of_their_own(over_weir, monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    seen = ranks(over_weir, "off")
    assert len({rank["session"] for rank in seen}) == 1
    for rank in seen:
        assert rank["group"] == rank["own"] != rank["session"]
        assert rank["preload"] is None and not rank["loaded"]
        session, *rest = rank["child"]
        assert int(session) != rank["session"], "a child that requests its own session gets it"
        assert rest == ["0"], "the library is not loaded into children"


def test_ld_preload_of_the_user_reaches_the_ranks(over_weir, monkeypatch):
    library = "libm.so.6"
    monkeypatch.setenv("LD_PRELOAD", library)
    assert {rank["preload"] for rank in ranks(over_weir, "off")} == {library}
    # The user's libraries come first.
    assert {rank["preload"] for rank in ranks(over_weir, "on")} == {f"{library}:{launch.COLLECTIVES.resolve()}"}
