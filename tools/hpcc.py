#!/usr/bin/env python3
"""Runs Debian's HPC Challenge benchmark across pretended hosts, over weir, and checks its results.

    tools/hpcc.py                        # 2 hosts, 4 ranks, UDP
    tools/hpcc.py --link 'ofi:tcp;ofi_rxm' --hosts 4 -n 4
    tools/hpcc.py --own                  # the MPI's own network, to compare the time

The program is that of Debian's package `hpcc`, which uses Debian's Open MPI and libfabric 1.17, whose `tcp` needs `ofi_rxm`.
As root this installs the package if it is missing. HPCC checks linear equations (HPL), transposed matrices, random updates
of a distributed table, and a Fourier transform; each must say that it is correct.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import launch
import netns

MPIRUN = pathlib.Path("/usr/bin/mpirun.openmpi")
# What HPCC itself says about a correct run. The Fourier transform prints an error in units of the precision, and 16 is what HPL
# allows for its own.
LARGEST_ERROR = 16.0

INPUT = """\
HPLinpack benchmark input file
weir
HPL.out      output file name
8            device out
1            problem sizes
{size}       Ns
1            blocks
32           NBs
0            PMAP
1            grids
{rows}       Ps
{columns}    Qs
16.0         threshold
1            panel factorisations
2            PFACTs
1            stopping criteria
4            NBMINs
1            panels
2            NDIVs
1            recursive panel factorisations
1            RFACTs
1            broadcasts
1            BCASTs
1            lookahead depths
1            DEPTHs
2            SWAP
64           swapping threshold
0            L1
0            U
1            equilibration
8            alignment
##### this line is ignored #####
0            further sizes for PTRANS
1200         N
0            further blocks for PTRANS
40           NB
"""


def install():
    """Installs Debian's package unless it is there. Returns why it cannot, or None."""
    if shutil.which("hpcc") and MPIRUN.exists():
        return None
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return "hpcc is not installed: apt-get install hpcc"
    print("installing Debian's hpcc", flush=True)
    quiet = {"env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, "stdout": subprocess.DEVNULL, "check": True}
    subprocess.run(["apt-get", "update", "-qq"], **quiet)
    subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "hpcc"], **quiet)
    return None


def command(hosts, ranks, folder, link):
    """Command line and environment. `link`: weir's link between hosts, or None for the MPI's own network."""
    per_host = -(-ranks // hosts.count)
    words = [MPIRUN, "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", hosts.state / "agent",
             "--mca", "oob_tcp_if_include", f"{netns.NETWORK}.0/24", "--mca", "orte_tmpdir_base", hosts.shared,
             "--host", ",".join(f"{name}:{per_host}" for name in hosts.names), "--oversubscribe", "--bind-to", "none"]
    if link:
        words += ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "weir"]
        # `FI_PROVIDER` would hide the parts of a layered provider from weir. The MPI chooses weir by `mtl_ofi_provider_include`.
        parts = link.removeprefix("ofi:").split(";") if link.startswith("ofi:") else []
        variables = {"FI_PROVIDER_PATH": launch.PROVIDER.parent, "FI_PROVIDER": ",".join(["weir", *parts]),
                     "FI_WEIR_LINK": f"shm,{link}"}
    else:
        words += ["--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp"]
        variables = {}
    # One thread of the linear algebra for each rank.
    for name, value in {**variables, "OMP_NUM_THREADS": 1, "OPENBLAS_NUM_THREADS": 1}.items():
        words += ["-x", f"{name}={value}"]
    words += ["-n", str(ranks), "sh", "-c", f"cd {folder} && exec hpcc"]
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return hosts.words(netns.LOGIN, words), allowed


def checks(output):
    """What HPCC says about its results: {check: whether it is correct}. A check that it has not reached is missing."""
    summary = dict(re.findall(r"^(\w+)=(.*)$", output, re.MULTILINE))
    found = {}
    if "Success" in summary:
        found["complete"] = summary["Success"] == "1" and "End of HPC Challenge tests." in output
    hpl = re.findall(r"^\|\|Ax-b\|\|.*\.\.\.\.\.\. (\w+)$", output, re.MULTILINE)
    if hpl:
        found["HPL"] = set(hpl) == {"PASSED"}
    transposed = re.findall(r"^WALL .* (PASSED|FAILED) ", output, re.MULTILINE)
    if transposed:
        found["PTRANS"] = set(transposed) == {"PASSED"}
    for name in ("MPIRandomAccess", "MPIRandomAccess_LCG"):
        if f"{name}_ErrorsFraction" in summary:
            found[name] = float(summary[f"{name}_ErrorsFraction"]) == 0.0
    if "MPIFFT_maxErr" in summary:
        found["MPIFFT"] = 0.0 <= float(summary["MPIFFT_maxErr"]) < LARGEST_ERROR
    return found


CHECKS = {"complete", "HPL", "PTRANS", "MPIRandomAccess", "MPIRandomAccess_LCG", "MPIFFT"}


def grid(ranks):
    """Rows and columns of the ranks, as square as possible."""
    rows = max(number for number in range(1, ranks + 1) if ranks % number == 0 and number * number <= ranks)
    return rows, ranks // rows


def run(hosts, ranks, size, link, timeout):
    """Returns the outcome of the run, and the checks of HPCC."""
    with tempfile.TemporaryDirectory(prefix="weir-hpcc-", dir=launch.OUT) as folder:
        rows, columns = grid(ranks)
        (pathlib.Path(folder) / "hpccinf.txt").write_text(INPUT.format(size=size, rows=rows, columns=columns))
        words, env = command(hosts, ranks, folder, link)
        outcome = launch.run(words, timeout=timeout, env=env)
        written = pathlib.Path(folder) / "hpccoutf.txt"
        return outcome, checks(written.read_text()) if written.exists() else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts (default: %(default)s)")
    parser.add_argument("-n", type=int, default=4, help="number of ranks (default: %(default)s)")
    parser.add_argument("--size", type=int, default=500, help="rows of the linear equations (default: %(default)s)")
    parser.add_argument("--link", default="udp", help="weir's link between hosts (default: %(default)s)")
    parser.add_argument("--own", action="store_true", help="the MPI's own network instead of weir")
    parser.add_argument("--timeout", type=float, default=400, help="time limit in seconds (default: %(default)s)")
    options = parser.parse_args()
    if reason := netns.reason_not_possible() or install():
        raise SystemExit(reason)
    launch.require(launch.PROVIDER)
    with netns.Hosts(options.hosts) as hosts:
        link = None if options.own else options.link
        outcome, found = run(hosts, options.n, options.size, link, options.timeout)
    for check in sorted(CHECKS):
        print(f"  {check:22} {'ok' if found.get(check) else 'WRONG' if check in found else 'not reached'}")
    good = outcome.ok and found.keys() == CHECKS and all(found.values())
    print(f"{options.n} ranks on {options.hosts} hosts over {link or 'the own network'}: "
          f"{'all results are correct' if good else 'FAILED'}, {outcome.seconds:.1f} s")
    if not good:
        print(outcome)
    return 0 if good else 1


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main())
