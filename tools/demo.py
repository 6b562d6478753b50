#!/usr/bin/env python3
"""IMB-MPI1 at a few sizes over MPICH's own transport and over weir, side by side, then weir's report."""

import argparse
import sys
import tempfile

import imb
import launch

BENCHMARKS = ["PingPong", "Exchange", "Allreduce", "Alltoall", "Barrier"]
SIZES = [0, 8, 64, 1024, 8192, 65536, 1 << 20]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per run (default: %(default)s)")
    options = parser.parse_args()
    launch.require(launch.WEIR, launch.PROVIDER, launch.imb())
    with tempfile.NamedTemporaryFile("w", suffix=".sizes") as sizes:
        sizes.write("".join(f"{size}\n" for size in SIZES))
        sizes.flush()
        program = imb.program(options.ranks, BENCHMARKS, "-msglen", sizes.name, "-iter", "200", "-time", "2")
        print(f"running {', '.join(BENCHMARKS)} over MPICH's own transport ...", flush=True)
        own = launch.run([*launch.plain_mpiexec("mpich", options.ranks), *program], timeout=options.timeout,
                         env=launch.plain_environment("mpich"))
        print("running the same over weir ...", flush=True)
        weir = launch.run(launch.weir_run(options.ranks, program), timeout=options.timeout)
    for name, result in (("over MPICH's own transport", own), ("over weir", weir)):
        if not result.ok:
            print(f"IMB-MPI1 {name} failed:\n{result}")
            return 1

    before, after = imb.rows(own.output), imb.rows(weir.output)
    print(f"\n{'benchmark':12} {'processes':>9} {'bytes':>9} {'MPICH/us':>12} {'weir/us':>12} {'MPICH:weir':>11}")
    for key, time in after.items():
        name, processes, size = key
        other = before.get(key)  # IMB leaves sizes out when its time is over
        ratio = f"{other:12.2f} {time:12.2f} {other / time:10.2f}x" if other and time else f"{'-':>12} {time:12.2f} {'-':>11}"
        print(f"{name:12} {processes:9} {'-' if size is None else size:>9} {ratio}")
    report = weir.output.splitlines()
    start = max((at for at, line in enumerate(report) if line.startswith("weir: ") and "exit status" in line), default=None)
    print("\nThe report of weir run:" if start is not None else "\nweir run printed no report")
    print("\n".join(report[start:] if start is not None else []))
    print(f"\nmake demo: done. IMB-MPI1 ran unmodified over weir with {options.ranks} ranks.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
