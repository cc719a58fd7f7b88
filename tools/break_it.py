"""Breaks the product in places that a seed chooses, and says which test notices each breakage.

Usage: python tools/break_it.py [--seed 1] [--count 60] [--only WORDS] [--tests FILES] [--cpu 60]

Half of the places are in python/herring and half in src (breakable.py finds and draws them). Each
is broken in a copy of the checkout below build/breakages, which has uncommitted changes, too. The
copy is built again as far as needed. Tests that concern the place (concerned.py) run one file after
the other until one notices: it fails twice with the breakage, and passes without it. A test that
hangs notices, too. The copies stay for the next run, and `make clean` removes them.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from breakable import Place, choose
from concerned import Step, cc_steps, gtest, pytest_of, python_steps

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "breakages"
# Tests hang if they use less than a CPU second in so many seconds, or that many CPU seconds in all.
STANDSTILL = 100.0
MOST_CPU_SECONDS = 400.0
_ADOPT_ORPHANS = 36  # prctl's PR_SET_CHILD_SUBREAPER
# Each file compiles alone: most breakages are in one of them, and modules are large. Names for
# debuggers and the last fifth of speed cost a third of the time to compile.
FLAGS = ("-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -DNDEBUG")
ALONE = """
function(compile_files_alone)
  set_target_properties(herring_core PROPERTIES UNITY_BUILD OFF)
endfunction()
cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL compile_files_alone)
"""


HANGS = "hangs"


class NotCompiled(Exception):
    """The breakage does not compile."""


@dataclasses.dataclass
class Outcome:
    """What became of a breakage: which test noticed it ("": none), and which files have run."""

    place: Place
    was: str
    now: str
    noticed: str = ""
    seconds: float = 0.0  # of the CPUs, for tests
    ran: list[str] = dataclasses.field(default_factory=list)
    left_out: list[str] = dataclasses.field(default_factory=list)  # there was no time for them
    once: list[str] = dataclasses.field(default_factory=list)  # failed, but not a second time


class Copy:
    """A copy of the checkout, in which one place at a time is broken."""

    def __init__(self, tree: str, temporary: Path) -> None:
        self.root = FOLDER / Path(tree).name
        self.native = tree == "src"
        self.python = self.root / ".venv" / "bin" / "python"
        self.failing: dict[str, set[str]] = {}  # by step: tests that fail without a breakage
        self.used = 0.0  # CPU seconds of tests
        self._temporary = temporary
        self._mirror()

    def build(self) -> None:
        """Builds what tests of the copy need."""
        self._make_environment()
        if self.native:
            self._configure()

    def _mirror(self) -> None:
        """Copies what is tracked or not ignored, and leaves alone what has not changed."""
        listed = subprocess.run(
            ["git", "ls-files", "-zco", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        )
        names = {name for name in listed.stdout.split("\0") if (ROOT / name).is_file()} - {""}
        for name in names:
            to = self.root / name
            to.parent.mkdir(parents=True, exist_ok=True)
            if not to.is_file() or to.read_bytes() != (ROOT / name).read_bytes():
                shutil.copy(ROOT / name, to)
                self._forget_compiled(to)
        for top in {Path(name).parts[0] for name in names}:
            for path in (self.root / top).rglob("*"):
                made = path.is_symlink() or "__pycache__" in path.parts
                if path.is_file() and not made and str(path.relative_to(self.root)) not in names:
                    path.unlink()

    def _make_environment(self) -> None:
        """Makes a .venv whose packages are those of ROOT, but for Herring's own.

        The line of a .pth file adds a folder without what its own .pth files say. So the editable
        packages of ROOT are not found, and Python imports the copy.
        """
        own = Path(sysconfig.get_path("purelib"))
        if not self.python.exists():
            command = [sys.executable, "-m", "venv", "--without-pip", str(self.root / ".venv")]
            subprocess.run(command, check=True)
        packages = self.root / ".venv" / own.relative_to(ROOT / ".venv")
        lines = [self.root / "python", self.root / "lab" / "python", own]
        (packages / "breakages.pth").write_text("".join(f"{line}\n" for line in lines))
        script = (ROOT / ".venv" / "bin" / "herring").read_text().partition("\n")[2]
        command = self.python.parent / "herring"
        command.write_text(f"#!{self.python}\n{script}")
        command.chmod(0o755)
        self._link(ROOT / ".venv" / "nvrtc", self.root / ".venv" / "nvrtc")
        for name, folder in (("herring", "python"), ("herring_lab", "lab/python")):
            for path in (own / name).rglob("*"):
                if path.is_file() and path.suffix not in (".py", ".pyc") and not self.native:
                    self._link(path, self.root / folder / path.relative_to(own))
        if not self.native:
            (self.root / "build" / "tests").mkdir(parents=True, exist_ok=True)
            for name in ("tests/device", "tests/fault_injection.so"):
                self._link(ROOT / "build" / name, self.root / "build" / name)

    def _configure(self) -> None:
        (self.root / "build").mkdir(exist_ok=True)
        alone = self.root / "build" / "alone.cmake"
        alone.write_text(ALONE)
        launcher = shutil.which("ccache")
        options = [*FLAGS, f"-DCMAKE_PROJECT_herring_INCLUDE={alone}"]
        options += [f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}"] if launcher else []
        options += [f"-DPython_EXECUTABLE={sys.executable}", "-DHERRING_BUILD_TESTS=ON"]
        options += ["-DHERRING_BUILD_PYTHON=ON", "-DHERRING_BUILD_LAB=ON"]
        self._check(["cmake", "-S", ".", "-B", "build", "-G", "Ninja", *options])
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        self._link(
            self.root / "build/bindings" / f"_core{suffix}",
            self.root / "python/herring" / f"_core{suffix}",
        )
        for name in (f"_simulate{suffix}", "herring_lab_switch"):
            self._link(self.root / "build/lab" / name, self.root / "lab/python/herring_lab" / name)

    @staticmethod
    def _link(to: Path, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            path.unlink()
        path.symlink_to(to)

    def _check(self, command: list[str]) -> None:
        status, output = self._run(command, hangs=False)
        if status != 0:
            raise NotCompiled(output[-3000:])

    def _build(self, *targets: str) -> None:
        if self.native and targets:
            self._check(["cmake", "--build", "build", "--target", *targets, "--", "--quiet"])

    @staticmethod
    def _forget_compiled(path: Path) -> None:
        """Python compares seconds and sizes only, and both may be those of another breakage."""
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def _write(self, path: str, text: str) -> None:
        (self.root / path).write_text(text, encoding="utf-8")
        self._forget_compiled(self.root / path)

    @contextlib.contextmanager
    def holding(self, path: str, text: str) -> Iterator[None]:
        """Gives a file another text as long as the context lasts."""
        before = (self.root / path).read_text(encoding="utf-8")
        self._write(path, text)
        try:
            yield
        finally:
            self._write(path, before)

    def passes(self, step: Step, only: str = "") -> tuple[bool, str]:
        """Runs a step or one of its tests. Returns whether all pass, and which one does not."""
        self._build(*step.targets)
        command = step.command(self.python, only, self.failing.get(step.name, ()))
        began = cpu_seconds()
        status, output = self._run(command)
        self.used += cpu_seconds() - began
        if status == 0 or (step.kind == "pytest" and status == 5):  # 5: there is no test to run
            return True, ""
        return False, HANGS if status is None else step.failed(output)

    def _run(self, command: list[str], hangs: bool = True) -> tuple[int | None, str]:
        """Returns the exit status, or None if the command hangs (if it may), and the output."""
        folders = [self.python.parent, ROOT / ".venv" / "bin", os.environ["PATH"]]
        path = os.pathsep.join(map(str, folders))
        keep = {name: value for name, value in os.environ.items() if "HERRING" not in name}
        keep.pop("PYTHONPATH", None)
        environment = {**keep, "PATH": path, "TMPDIR": str(self._temporary)}
        environment["XDG_RUNTIME_DIR"] = str(self._temporary)
        if command[0].startswith("build/"):
            environment["LD_LIBRARY_PATH"] = str(self.root / "build/tests/device")
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = _wait(process) if hangs else process.wait()
            finally:
                self._kill_descendants()
            output.seek(0)
            text = output.read()
        for path_left in self._temporary.iterdir():
            if path_left.is_dir() and not path_left.is_symlink():
                shutil.rmtree(path_left, ignore_errors=True)
            else:
                path_left.unlink(missing_ok=True)
        return status, text

    @staticmethod
    def _kill_descendants() -> None:
        """Kills what the command has started, also what it has left behind."""
        left = psutil.Process().children(recursive=True)
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        psutil.wait_procs(left, timeout=10)


def cpu_seconds() -> float:
    """Returns the CPU seconds of all that has been started here, and has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _wait(process: subprocess.Popen[str]) -> int | None:
    """Waits for a command. Returns its exit status, or None if it hangs.

    The clock alone cannot tell: beside other work, everything takes several times as long.
    """
    ended, used, moment = cpu_seconds(), 0.0, time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(5)
        running = 0.0
        for one in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                running += times.user + times.system + times.children_user + times.children_system
        now = cpu_seconds() - ended + running
        if now > MOST_CPU_SECONDS:
            return None
        if now >= used + 1:
            used, moment = now, time.monotonic()
        elif time.monotonic() - moment > STANDSTILL:
            return None


def steps_of(place: Place, copy: Copy, tests: list[str], seconds: dict[str, float]) -> list[Step]:
    """Returns what runs for a place: `tests` if there are any."""
    if tests:
        return [
            pytest_of(test, copy.native) if test.endswith(".py") else gtest(copy.root, test[5:])
            for test in tests
        ]
    return (
        cc_steps(copy.root, place.path)
        if copy.native
        else python_steps(copy.root, place.path, seconds)
    )


def examine(
    copy: Copy, place: Place, tests: list[str], cpu: float, seconds: dict[str, float]
) -> Outcome:
    """Breaks a place. Runs what concerns it until a test notices, or tests use `cpu` seconds."""
    text = (copy.root / place.path).read_text(encoding="utf-8")
    broken = place.broken(text)
    outcome = Outcome(place, *place.difference(text))
    if not copy.native:
        try:
            compile(broken, place.path, "exec")
        except SyntaxError as error:
            raise NotCompiled(str(error)) from None
    copy.used = 0.0
    with copy.holding(place.path, broken):
        for step in steps_of(place, copy, tests, seconds):
            if copy.used > cpu:
                outcome.left_out.append(step.name)
                continue
            outcome.ran.append(step.name)
            before = copy.used
            outcome.noticed = _noticed(copy, (place.path, text), step, outcome)
            if outcome.noticed:
                break
            seconds[step.name] = round(copy.used - before, 1)
    outcome.seconds = round(copy.used, 1)
    return outcome


def _noticed(copy: Copy, whole: tuple[str, str], step: Step, outcome: Outcome) -> str:
    """Returns the test of a step that notices a breakage, or "". `whole`: the file without it."""
    while True:
        passed, name = copy.passes(step)
        if passed:
            return ""
        hung, name = name == HANGS, name.removeprefix(HANGS)
        if not hung and copy.passes(step, name)[0]:
            outcome.once.append(name or step.name)
            return ""
        with copy.holding(*whole):
            fine = copy.passes(step, name)[0]
        if fine:
            return name or f"{step.name} ({HANGS if hung else 'ends'})"
        print(f"    without the breakage, too: {name or step.name}", flush=True)
        if not name:
            return ""
        copy.failing.setdefault(step.name, set()).add(name)


def run_tree(tree: str, count: int, options: argparse.Namespace, temporary: Path) -> list[Outcome]:
    """Breaks `count` places of a tree, or those of them that have a word of ``--only``."""
    only, tests = options.only.split(), options.tests.split()
    copy = Copy(tree, temporary)
    drawn = enumerate(choose(copy.root, tree, options.seed, count), 1)
    firsts = [(number, next(places), places) for number, places in drawn]
    if only:
        firsts = [
            one for one in firsts if any(word in f"{one[1].path}:{one[1].line}" for word in only)
        ]
    if not firsts:
        return []
    began = cpu_seconds()
    copy.build()
    took = cpu_seconds() - began
    print(f"{tree}: {len(firsts)} breakages; the copy took {took:.0f} CPU seconds", flush=True)
    recorded = FOLDER / f"{Path(tree).name}-seconds.json"
    seconds = json.loads(recorded.read_text()) if recorded.is_file() else {}
    result = FOLDER / f"{Path(tree).name}-seed-{options.seed}.json"
    before = json.loads(result.read_text()) if options.resume and result.is_file() else []
    known = {Place(**one.pop("place")): one for one in before}
    outcomes: list[Outcome] = []
    for number, place, others in firsts:
        while True:
            if place in known:
                outcome = Outcome(place, **known[place])
                break
            try:
                outcome = examine(copy, place, tests, options.cpu, seconds)
                break
            except NotCompiled:
                place = next(others)
        outcomes.append(outcome)
        show(number, outcome)
        recorded.write_text(json.dumps(seconds, indent=1, sort_keys=True))
        everything = [dataclasses.asdict(one) for one in outcomes]
        result.write_text(json.dumps(everything, indent=1))
    return outcomes


def show(number: int, outcome: Outcome) -> None:
    """Prints a row of the table: where, what, who noticed, after how many seconds."""
    place = outcome.place
    seen = f"noticed by {outcome.noticed}" if outcome.noticed else "NOT NOTICED"
    print(f"{number:3} {place.path}:{place.line}  {place.kind}  {outcome.seconds:.0f} s  {seen}")
    print(f"    - {outcome.was}\n    + {outcome.now}")
    if not outcome.noticed:
        print(f"    ran: {' '.join(Path(name).name for name in outcome.ran)}")
    if outcome.left_out:
        print(f"    no time for: {' '.join(Path(name).name for name in outcome.left_out)}")
    if outcome.once:
        print(f"    failed once, and then passed: {' '.join(outcome.once)}")
    sys.stdout.flush()


def main() -> int:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60, help="breakages in both trees together")
    parser.add_argument("--only", default="", help="parts of PATH:LINE, such as src/ or launch/run")
    parser.add_argument("--tests", default="", help="these instead: tests/python/test_x.py test_y")
    parser.add_argument(
        "--cpu", type=float, default=120, help="CPU seconds after which no further file begins"
    )
    parser.add_argument("--resume", action="store_true", help="keep what the last run has found")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and so are the tests
    FOLDER.mkdir(parents=True, exist_ok=True)
    lock = (FOLDER / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"another run works in {FOLDER}")
    ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="break") as temporary:
        for tree, count in (
            ("python/herring", options.count // 2),
            ("src", options.count - options.count // 2),
        ):
            outcomes += run_tree(tree, count, options, Path(temporary))
    unseen = [one for one in outcomes if not one.noticed]
    print(f"noticed: {len(outcomes) - len(unseen)} of {len(outcomes)}")
    for one in unseen:
        print(f"  nobody noticed {one.place.path}:{one.place.line}  + {one.now}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
