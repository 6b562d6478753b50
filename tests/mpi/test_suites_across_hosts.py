"""The tools of `make suites-hosts`: what they read from the suites, and a short run of each comparison."""

import pathlib
import types

import hpcc
import imb_hosts
import launch
import netns
import pytest

IMB_OUTPUT = """\
# Benchmarking Unidir_put
#    MODE: AGGREGATE
       #bytes #repetitions      t[usec]   Mbytes/sec
            0           20         0.22         0.00
            8           20       102.39         0.08
#    MODE: NON-AGGREGATE
       #bytes #repetitions      t[usec]   Mbytes/sec
            8           20       110.00         0.08
# Benchmarking Ibarrier
 #repetitions t_ovrl[usec] t_pure[usec]  t_CPU[usec]   overlap[%]
           20       156.40        27.32        18.58         0.00
"""
HPCC_OUTPUT = """\
||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=        0.0115390 ...... PASSED
WALL   100   100  32  32   1   2     0.00 PASSED    0.129  0.00
Success=1
MPIRandomAccess_ErrorsFraction=0
MPIRandomAccess_LCG_ErrorsFraction=0
MPIFFT_maxErr=1.1e-15
End of HPC Challenge tests.
"""


def test_times_of_intels_benchmarks_are_read_by_mode_and_size():
    assert imb_hosts.rows(IMB_OUTPUT) == {("aggregate", 0): 0.22, ("aggregate", 8): 102.39, ("non-aggregate", 8): 110.0,
                                          ("non-aggregate", None): 27.32}


@pytest.mark.parametrize("right,wrong,check", [
    ("...... PASSED", "...... FAILED", "HPL"), ("0.00 PASSED", "0.00 FAILED", "PTRANS"), ("Success=1", "Success=0", "complete"),
    ("MPIRandomAccess_ErrorsFraction=0", "MPIRandomAccess_ErrorsFraction=0.02", "MPIRandomAccess"), ("e-15", "e+15", "MPIFFT"),
])
def test_a_wrong_result_of_hpcc_is_seen(right, wrong, check):
    found = hpcc.checks(HPCC_OUTPUT)
    assert found.keys() == hpcc.CHECKS and all(found.values())
    found = hpcc.checks(HPCC_OUTPUT.replace(right, wrong))
    assert [name for name, good in found.items() if not good] == [check]


def test_hpcc_does_not_hide_the_parts_of_a_layered_provider_from_weir():
    folder = pathlib.Path("/tmp")
    hosts = types.SimpleNamespace(count=2, names=["h1", "h2"], state=folder, shared=folder, words=lambda _, words: words)
    providers = {link: [word for word in hpcc.command(hosts, 4, folder, link)[0] if str(word).startswith("FI_PROVIDER=")]
                 for link in ("udp", "ofi:tcp;ofi_rxm")}
    assert providers == {"udp": ["FI_PROVIDER=weir"], "ofi:tcp;ofi_rxm": ["FI_PROVIDER=weir,tcp,ofi_rxm"]}


@pytest.mark.skipif(netns.reason_not_possible() is not None, reason=str(netns.reason_not_possible()))
def test_intels_benchmarks_are_compared_with_the_own_network():
    words = [launch.ROOT / "tools" / "imb_hosts.py", "--programs", "IMB-MPI1", "--only", "Bcast", "--mpi", "mpich", "--ranks", "2",
             "--msglog", "3:4", "--timeout", "40"]
    outcome = launch.run(words, timeout=90)
    assert outcome.ok and " x, worst " in outcome.output and "complete" in outcome.output, outcome
