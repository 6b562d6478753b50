"""mpi4py's own tests with and without weir: a subset at 2 ranks; all of them with `make compare-mpi4py`."""

import mpi4py_compare
import pytest


@pytest.mark.parametrize("name", mpi4py_compare.QUICK)
def test_mpi4py_tests_pass_with_weir(name):
    mpi4py_compare.fetch_suite()
    assert mpi4py_compare.compare("mpich", 2, [name], 120, "weir", "dynamic")[0] == {}


def test_open_mpi_point_to_point():
    mpi4py_compare.fetch_suite()
    assert mpi4py_compare.compare("openmpi", 2, ["test_p2p_buf.py"], 120, "weir", "dynamic")[0] == {}
