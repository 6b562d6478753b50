"""Programs of MPI that check their data, run across pretended hosts, and what they have counted.

Each rank counts in a file (`tests/mpi/checked.h`), which is read while the program runs and after the rank was killed. So what a
fault has cost is measured, and a rank that checks no message any more is noticed.
"""

import os
import pathlib
import signal
import struct
import tempfile
import threading
import time
from dataclasses import dataclass

import launch

FIELDS = ("sent", "checked", "bytes", "wrong_bytes", "failures", "errors", "ended")
SOURCES = launch.ROOT / "tests" / "mpi"
LAUNCHERS = ("hydra", "mpiexec", "mpirun", "prte", "prun")
# A program that does not run after so long does not start.
START_SECONDS = 60


@dataclass
class Counts:
    """Of one rank, or of several. `failures`: messages with a wrong byte, length or envelope; `errors`: of MPI."""

    sent: int = 0
    checked: int = 0
    bytes: int = 0
    wrong_bytes: int = 0
    failures: int = 0
    errors: int = 0
    ended: int = 0

    def __add__(self, other):
        return Counts(*(getattr(self, field) + getattr(other, field) for field in FIELDS))


class Job:
    """A program in the background: `stress`, which ends after `stop`, or `traffic`, which does not end.

    - `link`: weir's link between hosts, `udp` or `ofi:NAME`; `limit_seconds`: after so long a silent peer is lost.
    - `flip`: rank 0 changes a byte of a message: `traffic` in this round, `stress` after `stop`.
    """

    def __init__(self, hosts, ranks, program, *, mpi="mpich", link="udp", limit_seconds=5, seed=1, flip=None, settings=None):
        self.hosts, self.ranks, self.program, self.mark, self.outcome = hosts, ranks, program, launch.new_mark(), None
        self._folder = tempfile.TemporaryDirectory(prefix="weir-checked-")
        self.directory = pathlib.Path(self._folder.name)
        self.settings = {"FI_WEIR_PEER_TIMEOUT_S": str(limit_seconds), "FI_WEIR_LINK": f"shm,{link}", "FI_WEIR_NET": "eth0",
                         "FI_TCP_IFACE": "eth0", **(settings or {})}
        words, env = self._command(mpi, self._arguments(mpi, seed, flip))
        self.thread = threading.Thread(target=self._run, args=(words, env))
        self.thread.start()

    def _arguments(self, mpi, seed, flip):
        program = [launch.compile_for(mpi, SOURCES / f"{self.program}.c")]
        if self.program == "traffic":
            # Intel MPI ends the rank instead of returning the error, and waits for the launcher after it has said so.
            own_errors = ["sh", "-c", 'exec "$@" 2> "$0/stderr.${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"', self.directory]
            return [*own_errors, *program, self.directory, "exchange", -1, 0, *([] if flip is None else [flip])]
        program += ["--seed", seed, "--max-bytes", 1 << 17, "--counts", self.directory, "--until", self.directory / "stop"]
        return [*program, *([] if flip is None else ["--flips", 1])]

    def _command(self, mpi, program):
        return self.hosts.mpiexec(mpi, self.ranks, list(map(str, program)), settings=self.settings)

    def _run(self, words, env):
        self.outcome = launch.run(words, timeout=24 * 3600, env=env, mark=self.mark)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self._folder.cleanup()

    def counts(self):
        """Of each rank: {rank: counts}. A rank that has not begun is not in it."""
        found = {}
        for rank in range(self.ranks):
            try:
                content = (self.directory / f"counts.{rank}").read_bytes()
            except FileNotFoundError:
                continue
            if content:
                found[rank] = Counts(*struct.unpack(f"{len(FIELDS)}Q", content))
        return found

    def errors(self):
        """The text of the error of each rank of `traffic` that has one: {rank: text}."""
        found = {}
        for rank in range(self.ranks):
            for name in ("error", "stderr"):
                path = self.directory / f"{name}.{rank}"
                text = path.read_text() if path.exists() else ""
                if "rror" in text:
                    found[rank] = text
        return found

    def total(self):
        return sum(self.counts().values(), Counts())

    def silent_since(self, before, seconds):
        """Waits until each rank has checked more messages than `before`, or the job has ended, for at most `seconds`. Returns the
        ranks that have not."""
        deadline = time.monotonic() + seconds
        while True:
            now = self.counts()
            silent = [rank for rank in range(self.ranks)
                      if now.get(rank, Counts()).checked <= before.get(rank, Counts()).checked]
            if not silent or self.outcome or time.monotonic() > deadline:
                return silent
            time.sleep(0.02)

    def starts(self):
        """Waits until each rank has checked a message. Returns whether that is so."""
        return not self.silent_since({}, START_SECONDS) and not self.outcome

    def stop(self):
        """The ranks of `stress` end after this round."""
        (self.directory / "stop").touch()

    def join(self, seconds):
        """Waits until the job has ended, for at most `seconds`. Returns the number of ranks that have not."""
        self.thread.join(seconds)
        return 0 if self.outcome else sum(map(len, self.processes().values()))

    def processes(self):
        """Of each host, the processes of its ranks: {name: processes}."""
        return {name: self.hosts.processes(name, self.program) for name in self.hosts.names if name in self.hosts.pids}

    def freeze_launcher(self):
        """From now on the launcher ends no rank because another one has ended."""
        for process, line in launch.marked(self.mark):
            if line and any(name in line.split()[0] for name in LAUNCHERS):
                os.kill(process, signal.SIGSTOP)

    def kill(self):
        """Ends what runs still."""
        while self.thread.is_alive():
            for process, _ in launch.marked(self.mark):
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.thread.join(0.2)
