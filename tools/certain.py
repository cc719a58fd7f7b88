"""Runs the Python tests again and again beside a compiler, and lists what failed ever.

Usage: python tools/certain.py TIMES [PYTEST-ARGUMENT ...]

A test that fails one time in many is a defect of the test or of the product. Two compilers keep two
cores busy meanwhile, so that whatever depends on time fails sooner. The exit status is 0 if nothing
has failed. The whole output of each run that failed lies in build/certain.
"""

from __future__ import annotations

import collections
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "certain"
COMPILERS = 2
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", re.MULTILINE)


def compile_for_ever() -> subprocess.Popen[bytes]:
    """Starts a shell that compiles one file of the core until it is killed with its group."""
    source = ROOT / "src" / "control" / "rendezvous.cc"
    words = f"g++ -std=c++20 -O2 -fsyntax-only -I {ROOT / 'src'} -c {source}"
    loop = f"while kill -0 {os.getpid()}; do {words}; done"
    return subprocess.Popen(
        ["sh", "-c", loop],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main() -> int:
    """Runs the tests, and prints a line for each run and each test that has failed."""
    times, arguments = int(sys.argv[1]), sys.argv[2:]
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    failures: collections.Counter[str] = collections.Counter()
    broken = 0  # runs that ended without naming a test
    load = [compile_for_ever() for _ in range(COMPILERS)]
    try:
        for number in range(1, times + 1):
            begin = time.monotonic()
            log = LOGS / f"{number}.log"
            with log.open("w") as file:
                status = subprocess.run(
                    [sys.executable, "-m", "pytest", "-q", *arguments],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    cwd=ROOT,
                ).returncode
            failed = sorted(set(_FAILED.findall(log.read_text(errors="replace"))))
            failures.update(failed)
            broken += bool(status and not failed)
            seconds = time.monotonic() - begin
            what = ", ".join(failed) if failed else "passed" if not status else f"status {status}"
            print(f"run {number} of {times}: {what} ({seconds:.0f} s)", flush=True)
            if not status:
                log.unlink()
    finally:
        for each in load:
            os.killpg(each.pid, 15)
            each.wait()
    for test, count in failures.most_common():
        print(f"failed in {count} of {times} runs: {test}")
    runs = f"{times} run{'s' * (times > 1)} beside {COMPILERS} compilers"
    print(f"{len(failures)} tests failed ever in {runs}")
    return int(bool(failures or broken))


if __name__ == "__main__":
    sys.exit(main())
