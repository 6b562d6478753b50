"""One rank of mpi4py's test suite: runs one test file and notes the outcome of each test at once.

usage: mpi4py_rank.py SUITE_DIR RESULT_PREFIX TEST_FILE

Writes RESULT_PREFIX.<rank>, with a line `name<TAB>outcome` for each test. Each line is flushed, so that a hang or a
crash loses no earlier result. Outcomes are: started (if no other follows, the test hung or crashed), ok, skipped,
failed, error, expected (failure) and unexpected (success). With libweir-mpi.so, a last line has the number of operations that
groups did. MPI4PY_TEST_THREAD_LEVEL: the thread level that the rank asks for (default: mpi4py's).
"""

import ctypes
import os
import pathlib
import re
import sys
import unittest


class Notes(unittest.TextTestResult):
    """Writes each outcome to `file`."""

    file = None

    def note(self, test, outcome):
        print(test.id() if hasattr(test, "id") else str(test), outcome, sep="\t", file=Notes.file, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.note(test, "started")

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skipped")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note(test, "failed")

    def addError(self, test, err):
        super().addError(test, err)
        self.note(test, "error")

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.note(test, "expected")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.note(test, "unexpected")

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.note(test, "failed")


def main():
    suite_dir, prefix, test_file = sys.argv[1:4]
    sys.path.insert(0, os.path.join(suite_dir, "test"))
    sys.argv = [os.path.join(suite_dir, "test", "main.py"), "-v", "-i", f"^{re.escape(test_file)}$"]
    import main as suite  # of mpi4py
    import mpi4py

    mpi4py.rc.thread_level = os.environ.get("MPI4PY_TEST_THREAD_LEVEL", mpi4py.rc.thread_level)
    from mpi4py import MPI

    path = pathlib.Path(f"{prefix}.{MPI.COMM_WORLD.Get_rank()}")
    with path.open("w", encoding="utf-8") as Notes.file:
        try:
            suite.TestProgram(module=None, testRunner=unittest.TextTestRunner(resultclass=Notes, verbosity=2), exit=False)
        finally:  # the suite exits by itself
            if performed := getattr(ctypes.CDLL(None), "weir_mpi_performed", None):
                performed.restype = ctypes.c_uint64
                print("operations of groups", performed(), sep="\t", file=Notes.file, flush=True)
            print("end of file", "ok", sep="\t", file=Notes.file, flush=True)


if __name__ == "__main__":
    main()
