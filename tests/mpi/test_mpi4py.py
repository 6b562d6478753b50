"""mpi4py's tests with and without weir: a subset with 2 ranks. `make compare-mpi4py` runs all."""

import mpi4py_compare
import pytest


def way(mpi, *settings):
    return mpi4py_compare.Way(mpi, ranks=2, flow="demand", hosts=0, link="udp", settings=settings)


@pytest.mark.parametrize("name", mpi4py_compare.QUICK)
def test_mpi4py_tests_pass_with_weir(name):
    mpi4py_compare.fetch_suite()
    assert mpi4py_compare.compare(way("mpich"), [name], 120, "weir")[0] == {}


def test_mpi4py_tests_of_collective_operations_pass_with_messages():
    mpi4py_compare.fetch_suite()
    assert mpi4py_compare.compare(way("mpich", "FI_WEIR_COLLECTIVES=0"), ["test_cco_buf.py"], 120, "weir")[0] == {}


def test_mpi4py_point_to_point_tests_pass_under_open_mpi():
    mpi4py_compare.fetch_suite()
    assert mpi4py_compare.compare(way("openmpi"), ["test_p2p_buf.py"], 120, "weir")[0] == {}
