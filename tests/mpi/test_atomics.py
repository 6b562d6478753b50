"""Remote atomics of libfabric between two processes, by the core library of the system."""

import os
import re
import subprocess

import launch
import pytest

SOURCE = launch.ROOT / "tests" / "mpi" / "atomics.c"
# Twelve calls of each operation: 19 on integers, and those that are not bitwise on floats.
CALLS = 12 * (4 * 19 + 2 * 15)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    header = launch.pathlib.Path("/usr/include/rdma/fi_atomic.h")
    if not header.exists():
        pytest.skip("no headers of libfabric (install libfabric-dev)")
    target = tmp_path_factory.mktemp("atomics") / "atomics"
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-fwrapv", "-o", target, SOURCE, "-lfabric"], check=True)
    return target


@pytest.mark.parametrize("arguments", [[], ["AUTO"]])
def test_every_operation_on_every_type_agrees_with_a_local_computation(program, private_shm, arguments):
    environment = {**os.environ, "FI_PROVIDER_PATH": str(launch.PROVIDER.parent), "FI_PROVIDER": "weir"}
    done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done
    assert int(re.search(r"(\d+) calls agree", done.stdout)[1]) == CALLS, done
