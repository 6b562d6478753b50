"""Collective operations of libfabric between processes and between endpoints of one, by the core library of the system."""

import os
import re
import subprocess

import launch
import pytest

SOURCE = launch.ROOT / "tests" / "mpi" / "fi_collectives.c"
OPERATIONS = 9  # barrier, broadcast, ..., gather
# One by one four of each, then at least one in each of 40 rounds, in two groups; and one in each of 80 further groups.
LEAST = 2 * (4 * OPERATIONS + 40) + 80


PAGE = launch.ROOT / "docs" / "how-to" / "libfabric-collectives.md"


@pytest.mark.parametrize("link", ["shm", "udp"])
def test_the_program_of_the_page_prints_what_the_page_says(tmp_path, private_shm, link):
    needs_headers()
    blocks = re.findall(r"^```(\S+)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (source,) = [text for kind, text in blocks if kind == "c"]
    (expected,) = [text for kind, text in blocks if kind == "text"]
    (tmp_path / "members.c").write_text(source)
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "members.c", "-lfabric", "-o", "members"], check=True, cwd=tmp_path)
    environment = {**os.environ, "FI_PROVIDER_PATH": str(launch.PROVIDER.parent), "FI_WEIR_LINK": link}
    done = subprocess.run([tmp_path / "members"], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, expected), done


def needs_headers():
    if not launch.pathlib.Path("/usr/include/rdma/fi_collective.h").exists():
        pytest.skip("no headers of libfabric (install libfabric-dev)")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    needs_headers()
    target = tmp_path_factory.mktemp("fi_collectives") / "fi_collectives"
    options = ["-O2", "-Wall", "-Wextra", "-Werror", "-fwrapv", "-ffp-contract=off"]
    subprocess.run(["cc", *options, "-o", target, SOURCE, "-lfabric"], check=True)
    return target


def run(program, *arguments):
    environment = {**os.environ, "FI_PROVIDER_PATH": str(launch.PROVIDER.parent), "FI_PROVIDER": "weir"}
    done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done
    return done


@pytest.mark.parametrize("members", [2, 3, 5, 8])
@pytest.mark.parametrize("where", ["processes", "endpoints"])
def test_every_call_agrees_with_a_local_computation(program, private_shm, where, members):
    done = run(program, where, str(members))
    assert int(re.search(r"(\d+) results agree", done.stdout)[1]) >= LEAST, done


def test_a_group_of_one_needs_nobody(program, private_shm):
    run(program, "endpoints", "1")


def test_calls_agree_with_automatic_progress(program, private_shm):
    run(program, "processes", "3", "AUTO")


@pytest.mark.parametrize("members", [2, 5])
@pytest.mark.parametrize("when", ["death", "late-death"])
def test_a_dead_member_is_an_error_at_all_others(program, private_shm, when, members):
    run(program, when, str(members))
