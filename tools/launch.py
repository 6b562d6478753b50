"""Running MPI programs for the tests and tools: where things are, and a run that cannot outlive its time.

Every process of a run carries the run's mark in its environment. A run that is over, by its end or by its
time, takes with it whatever still carries the mark, however it was started and whatever group it is in.
"""

import itertools
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = pathlib.Path(os.environ.get("WEIR_OUT", ROOT / "out"))
WEIR = OUT / "bin" / "weir"
PROVIDER = OUT / "lib" / "libweir-fi.so"
MARK = "WEIR_LAUNCH_MARK"

_numbers = itertools.count()


def env_dir(mpi):
    """The private environment of one MPI: `mpich`, `intel`, `openmpi`."""
    return OUT / "env" / mpi


def python(mpi):
    return env_dir(mpi) / "bin" / "python"


def imb(name="IMB-MPI1"):
    """Intel's benchmark programs; they run under MPICH too, which has the same binary interface."""
    return env_dir("intel") / "bin" / name


def plain_mpiexec(mpi, ranks):
    """The MPI's own launcher with its own transports: the baseline that weir is compared with."""
    command = [env_dir(mpi) / "bin" / "mpiexec"]
    if mpi == "openmpi":
        command += ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    return [*command, "-n", str(ranks)]


def plain_environment(mpi):
    """What a program needs to find this MPI's library and nothing of weir."""
    env = {"LD_LIBRARY_PATH": str(env_dir(mpi) / "lib")}
    if mpi == "intel":
        env["I_MPI_ROOT"] = str(env_dir(mpi))
        env["FI_PROVIDER_PATH"] = str(env_dir(mpi) / "lib")
    if mpi == "openmpi":
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        env["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    return env


def weir_run(ranks, program, *, mpi="mpich", flags=(), report=None):
    command = [WEIR, "run", "-n", str(ranks), "--mpi", mpi, *flags]
    if report:
        command += ["--json", report]
    return [str(word) for word in [*command, "--", *program]]


@dataclass
class Outcome:
    """How a run ended. `status` is the exit status, or None if its time was over."""

    command: list
    status: int | None
    output: str
    seconds: float
    processor_seconds: float
    leftovers: list = field(default_factory=list)

    @property
    def ok(self):
        return self.status == 0

    def __str__(self):
        how = "its time was over" if self.status is None else f"status {self.status}"
        tail = self.output[-6000:]
        return f"{' '.join(map(str, self.command))}\n  {how} after {self.seconds:.1f} s; output:\n{tail}"


def new_mark():
    return f"{os.getpid()}.{next(_numbers)}"


def processor_seconds():
    """Processor time of all descendants that have ended and were waited for by their parents."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def run(command, *, timeout, env=None, cwd=None, mark=None):
    """Runs `command` to its end, or to the end of its `timeout` (seconds); output and errors together."""
    command = [str(word) for word in command]
    mark = mark or new_mark()
    full = {**os.environ, **(env or {}), MARK: mark}
    start, used = time.monotonic(), processor_seconds()
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                   env=full, cwd=cwd, start_new_session=True)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            status = None
        seconds = time.monotonic() - start
        leftovers = end_marked(mark)
        process.wait()
        file.seek(0)
        output = file.read().decode(errors="replace")
    return Outcome(command, status, output, seconds, processor_seconds() - used, leftovers)


def marked(mark):
    """Processes that carry the mark, this one's descendants: [(pid, command line)]."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append((int(entry.name), line.strip()))
        except OSError:
            continue  # it ended, or is not ours
    return found


def end_marked(mark, patience=2.0):
    """Asks, then kills. A launcher that has just ended gets a moment to collect its children."""
    deadline = time.monotonic() + patience / 4
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    leftovers = marked(mark)
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + patience
        while (left := marked(mark)) and time.monotonic() < deadline:
            for pid, _ in left:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            time.sleep(0.1)
    return leftovers


def read_report(path):
    return json.loads(pathlib.Path(path).read_text())


def shm_files(directory="/dev/shm"):
    """Mailboxes of this user that stand in shared memory now."""
    return sorted(path.name for path in pathlib.Path(directory).glob(f"weir.{os.getuid()}.*"))


def compile_c(source, mpi="mpich", *, flags=("-O2", "-Wall", "-Wextra", "-Werror")):
    """Compiles a C test with the MPI's own compiler wrapper, once per source; returns the program."""
    source = pathlib.Path(source)
    target = OUT / "tests" / mpi / source.stem
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        target.parent.mkdir(parents=True, exist_ok=True)
        compiler = env_dir(mpi) / "bin" / "mpicc"
        subprocess.run([compiler, *flags, "-o", target, source], check=True, env={**os.environ,
                       **plain_environment(mpi)})
    return target


def require(*paths):
    """Ends with one clear line if something that `make` should have made is missing."""
    missing = [str(path) for path in paths if not pathlib.Path(path).exists()]
    if missing:
        raise SystemExit(f"missing: {', '.join(missing)}; run `make build env` first")
    if shutil.which("cc") is None:
        raise SystemExit("no C compiler (`cc`) found: install gcc")
