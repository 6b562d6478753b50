"""Ranks are killed during traffic: the survivors get an error within 5 seconds, and no file is left.

The launcher's clean-up is disabled, because it would end the survivors before they get an error.
"""

import os
import pathlib
import signal
import threading
import time

import launch
import pytest

SOURCE = launch.ROOT / "tests" / "mpi" / "traffic.c"
LIMIT_SECONDS = 5
NO_CLEANUP = ["--launcher-arg", "-disable-auto-cleanup"]


class Job:
    """Runs `traffic` over weir in the background, and notes when its processes end."""

    def __init__(self, ranks, directory, *arguments):
        self.ranks, self.directory, self.ended, self.mark = ranks, directory, {}, launch.new_mark()
        directory.mkdir()
        program = [launch.compile_c(SOURCE), directory, *map(str, arguments)]
        words = launch.weir_run(ranks, program, flags=NO_CLEANUP)
        self.thread = threading.Thread(target=self._run, args=(words,))
        self.thread.start()

    def _run(self, words):
        self.outcome = launch.run(words, timeout=60, mark=self.mark)

    def kill_all(self):
        """Kills all processes at once: `weir run`, the launcher, its helpers and the ranks."""
        for process, _ in launch.marked(self.mark):
            os.kill(process, signal.SIGKILL)
        self.thread.join()

    def processes(self):
        """Process ids of the ranks that have started: {rank: process id}."""
        return {int(path.name): int(path.read_text()) for path in self.directory.iterdir() if path.name.isdigit()}

    def wait_for_start(self):
        deadline = time.monotonic() + 30
        while len(self.processes()) < self.ranks and time.monotonic() < deadline and self.thread.is_alive():
            time.sleep(0.02)
        if len(self.processes()) < self.ranks:
            self.thread.join()
            pytest.fail(f"the job did not start: {self.outcome}")

    def watch(self, seconds):
        """Notes when each rank ends, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        while len(self.ended) < self.ranks and time.monotonic() < deadline:
            for rank, process in self.processes().items():
                if rank not in self.ended and not runs(process):
                    self.ended[rank] = time.monotonic()
            time.sleep(0.02)


def runs(process):
    try:
        state = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.parametrize("mode,ranks", [("exchange", 2), ("exchange", 4), ("exchange", 8), ("wait", 3), ("any", 3),
                                        ("barrier", 4)])
def test_surviving_ranks_get_an_error(tmp_path, private_shm, mode, ranks):
    job = Job(ranks, tmp_path / "ranks", mode, ranks - 1, 50)
    job.wait_for_start()
    job.watch(45)
    job.thread.join()
    died = job.ended.get(ranks - 1)
    assert died, f"the victim did not die: {job.outcome}"
    late = [rank for rank in range(ranks) if job.ended.get(rank, float("inf")) - died > LIMIT_SECONDS]
    assert not late, f"ranks {late} did not end within {LIMIT_SECONDS} s: {job.outcome}"
    assert job.outcome.status not in (0, None), job.outcome
    assert not job.outcome.leftovers, job.outcome
    # The run may have ended before the last survivor.
    assert launch.run([launch.WEIR, "clean"], timeout=20).ok
    assert launch.shm_files(private_shm) == [], "mailboxes are left after the run"


def test_the_next_run_removes_files_of_killed_ranks(tmp_path, private_shm):
    """Ranks, launcher and `weir run` die at once. The next run removes their files and no others."""
    job = Job(4, tmp_path / "ranks", "exchange", -1, 0)
    job.wait_for_start()
    time.sleep(0.5)
    job.kill_all()
    other_files = [private_shm / "weir.notours", private_shm / "other"]
    for path in other_files:
        path.write_text("x")
    result = launch.run(launch.weir_run(2, [launch.python("mpich"), "-c", "from mpi4py import MPI"]), timeout=60)
    assert result.ok, result
    assert launch.shm_files(private_shm) == []
    assert all(path.read_text() == "x" for path in other_files), "other files were changed"


def test_clean_removes_stale_files_only(tmp_path, private_shm):
    dead = Job(2, tmp_path / "dead", "exchange", -1, 0)
    dead.wait_for_start()
    time.sleep(0.3)
    dead.kill_all()
    alive = Job(2, tmp_path / "alive", "exchange", -1, 0)
    alive.wait_for_start()
    time.sleep(0.3)
    running = launch.shm_files(private_shm)
    result = launch.run([launch.WEIR, "clean"], timeout=20)
    assert result.ok, result
    assert launch.shm_files(private_shm) == running
    mailboxes = [name for name in running if not name.endswith(".locks") and ".node" not in name]
    assert len(mailboxes) == 2, running
    assert len(running) == 4, f"two mailboxes, the lock file and the node segment: {running}"
    alive.kill_all()
    assert launch.run([launch.WEIR, "clean"], timeout=20).ok
    assert launch.shm_files(private_shm) == []

