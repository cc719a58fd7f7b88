"""Breaks the product in places that a seed chooses, and says which test notices each breakage.

Usage: python tools/break_it.py [--seed 1] [--count 60] [--only WORDS] [--tests FILES] [--cpu 60]

Half of the places are in python/herring and half in src (breakable.py finds and draws them). All
commands run in a layer over the checkout (overlayfs in a namespace of mounts), in which one file is
broken. The checkout itself stays as it is; leave it alone meanwhile. What is compiled again lies in
the layer, too. Tests that concern the place (concerned.py) run one file after the other until one
notices: it fails twice with the breakage, and passes without it. A test that hangs notices, too.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import resource
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
from unseen import UNSEEN

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "breakages"
PACKAGES = sysconfig.get_path("purelib")
# Tests hang if they use less than a CPU second in so many seconds, or too many CPU seconds.
STANDSTILL = 300.0
HANGS = "hangs"
# The shell is process 1 of a namespace: it reaps what a test leaves behind, which ends with it.
_MOUNT = (
    'mount -t overlay overlay -o "lowerdir=$1,upperdir=$2,workdir=$3" "$1" '
    '&& cd "$1" && shift 3 && "$@"; exit $?'
)
_ENTER = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


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

    @property
    def why_unseen(self) -> str:
        """Why no test can see it; "": one can."""
        return UNSEEN.get((self.place.path, self.was, self.now), "")


class Layer:
    """The checkout as commands see it: with another text of one file, and what they have made."""

    def __init__(self, folder: Path, path: str = "", text: str = "") -> None:
        """Creates a layer in an empty folder that is not in the checkout."""
        self._upper, self._work, self._temporary = (folder / name for name in ("up", "work", "tmp"))
        for one in (self._upper, self._work, self._temporary):
            one.mkdir(parents=True)
        if path:
            (self._upper / path).parent.mkdir(parents=True)
            (self._upper / path).write_text(text, encoding="utf-8")

    def run(
        self, command: list[str], limit: float | None = None, **environment: str
    ) -> tuple[int | None, str]:
        """Runs a command.

        Args:
          command: The command.
          limit: The CPU seconds after which it hangs; None: it does not hang.
          environment: Further variables.

        Returns:
          The exit status, or None if the command hangs, and the output.
        """
        keep = {name: value for name, value in os.environ.items() if "HERRING" not in name}
        variables = {
            **keep,
            **environment,
            "PATH": f"{ROOT}/.venv/bin{os.pathsep}{os.environ['PATH']}",
            "TMPDIR": str(self._temporary),
            "XDG_RUNTIME_DIR": str(self._temporary),
        }
        enter = [*_ENTER, *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
        mount = ["sh", "-c", _MOUNT, "sh", str(ROOT), str(self._upper), str(self._work)]
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                [*enter, *mount, *command],
                cwd="/",
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait() if limit is None else _wait(process, limit)
            finally:
                process.kill()
                process.wait()
            output.seek(0)
            return status, output.read()

    def passes(self, step: Step, only: str, without: set[str]) -> tuple[bool, str]:
        """Builds and runs a step or one of its tests.

        Returns:
          Whether all pass, and the name of the one that does not, or `HANGS`.

        Raises:
          NotCompiled: It cannot be built.
        """
        for command in step.preparation(PACKAGES):
            status, output = self.run(command)
            if status != 0:
                raise NotCompiled(output[-3000:])
        status, output = self.run(
            step.command(only, without), step.most_cpu_seconds, **step.environment
        )
        if status == 0 or (step.kind == "pytest" and status == 5):  # 5: there is no test to run
            return True, ""
        return False, HANGS if status is None else step.failed(output)


def cpu_seconds() -> float:
    """Returns the CPU seconds of all that has been started here, and has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _wait(process: subprocess.Popen[str], limit: float) -> int | None:
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
        if now > limit:
            return None
        if now >= used + 1:
            used, moment = now, time.monotonic()
        elif time.monotonic() - moment > STANDSTILL:
            return None


class Examination:
    """Breaks one place after the other of a tree.

    Attributes:
        seconds: The CPU seconds of each file of tests that no breakage ended early.
    """

    def __init__(self, tests: list[str], cpu: float, temporary: Path) -> None:
        """Creates it.

        Args:
            tests: What runs for each place; empty means what concerns the place.
            cpu: The CPU seconds after which no further file begins.
            temporary: A folder for layers.
        """
        self.seconds: dict[str, float] = {}
        self._tests, self._cpu, self._temporary = tests, cpu, temporary
        self._failing: dict[str, set[str]] = {}  # by step: tests that fail without a breakage
        self._built = {"default"}  # presets; `make breakages` has built this one

    def examine(self, place: Place) -> Outcome:
        """Breaks a place, and runs what concerns it until a test notices.

        Raises:
          NotCompiled: The breakage does not compile.
        """
        text = (ROOT / place.path).read_text(encoding="utf-8")
        outcome = Outcome(place, *place.difference(text))
        if outcome.why_unseen:
            return outcome
        if place.path.endswith(".py"):
            try:
                compile(place.broken(text), place.path, "exec")
            except SyntaxError as error:
                raise NotCompiled(str(error)) from None
        with self._layer(place.path, place.broken(text)) as layer:
            for step in self._steps(place):
                if outcome.seconds > self._cpu:
                    outcome.left_out.append(step.name)
                    continue
                self._build_core(step.preset)
                began = cpu_seconds()
                outcome.ran.append(step.name)
                outcome.noticed = self._noticed(layer, step, outcome)
                took = cpu_seconds() - began
                outcome.seconds = round(outcome.seconds + took, 1)
                if outcome.noticed:
                    break
                self.seconds[step.name] = round(took, 1)
        return outcome

    def _build_core(self, preset: str) -> None:
        """Builds the core in the checkout, so that layers compile only what is broken."""
        if preset in self._built:
            return
        self._built.add(preset)
        build = ["cmake", "--build", "--preset", preset, "--target", "herring_core", "--"]
        for command in (["cmake", "--preset", preset], [*build, "--quiet"]):
            subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)

    @contextlib.contextmanager
    def _layer(self, path: str = "", text: str = "") -> Iterator[Layer]:
        with tempfile.TemporaryDirectory(dir=self._temporary) as folder:
            yield Layer(Path(folder), path, text)

    def _steps(self, place: Place) -> list[Step]:
        native = not place.path.endswith(".py")
        if self._tests:
            return [
                pytest_of(test, native) if ".py" in test else gtest(ROOT, test[5:])
                for test in self._tests
            ]
        if native:
            return cc_steps(ROOT, place.path, races=place.kind == "lock not taken")
        return python_steps(ROOT, place.path, self.seconds)

    def _noticed(self, layer: Layer, step: Step, outcome: Outcome) -> str:
        """Returns the test of a step that notices what is broken in a layer, or ""."""
        failing = self._failing.setdefault(step.name, set())
        chance: set[str] = set()  # what has failed once, and then passed
        while step.name not in failing:
            passed, name = layer.passes(step, "", failing | chance)
            if passed:
                return ""
            hung, name = name == HANGS, name.removeprefix(HANGS)
            if not hung and layer.passes(step, name, failing | chance)[0]:
                outcome.once.append(name or step.name)
                chance.add(name)
            else:
                with self._layer() as whole:
                    if whole.passes(step, name, failing | chance)[0]:
                        return name or f"{step.name} ({HANGS if hung else 'ends'})"
                print(f"    without the breakage, too: {name or step.name}", flush=True)
                failing.add(name or step.name)
            if name in ("", step.name):  # not one of its tests: the file cannot be imported
                break
        return ""


def run_tree(tree: str, count: int, options: argparse.Namespace, temporary: Path) -> list[Outcome]:
    """Breaks `count` places of a tree, or those of them that have a word of ``--only``."""
    only = options.only.split()
    examination = Examination(options.tests.split(), options.cpu, temporary)
    recorded, result = (
        FOLDER / f"{Path(tree).name}-{name}.json" for name in ("seconds", f"seed-{options.seed}")
    )
    if recorded.is_file():
        examination.seconds = json.loads(recorded.read_text())
    before = json.loads(result.read_text()) if result.is_file() else []
    found = {(place := Place(**one["place"])): Outcome(**{**one, "place": place}) for one in before}
    outcomes: list[Outcome] = []
    for number, places in enumerate(choose(ROOT, tree, options.seed, count), 1):
        place = next(places)
        if only and not any(word in f"{place.path}:{place.line}" for word in only):
            continue
        while not (options.resume and place in found):
            try:
                found[place] = examination.examine(place)
                break
            except NotCompiled:
                place = next(places)
        outcomes.append(found[place])
        show(number, found[place])
        recorded.write_text(json.dumps(examination.seconds, indent=1, sort_keys=True))
        result.write_text(json.dumps([*map(dataclasses.asdict, found.values())], indent=1))
    return outcomes


def show(number: int, outcome: Outcome) -> None:
    """Prints a row of the table: where, what, who noticed, after how many seconds."""
    place = outcome.place
    seen = f"noticed by {outcome.noticed}" if outcome.noticed else "NOT NOTICED"
    if outcome.why_unseen:
        seen = f"cannot be seen: {outcome.why_unseen}"
    print(f"{number:3} {place.path}:{place.line}  {place.kind}  {outcome.seconds:.0f} s  {seen}")
    print(f"    - {outcome.was}\n    + {outcome.now}")
    if outcome.ran and not outcome.noticed:
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
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="break") as folder:
        temporary = Path(folder)
        status, output = Layer(temporary / "trial").run(["true"])
        if status != 0:
            sys.exit(f"a layer over {ROOT} needs overlayfs and namespaces: {output.strip()}")
        for tree, count in (
            ("python/herring", options.count // 2),
            ("src", options.count - options.count // 2),
        ):
            outcomes += run_tree(tree, count, options, temporary)
    missed = [one for one in outcomes if not one.noticed and not one.why_unseen]
    cannot = sum(bool(one.why_unseen) for one in outcomes)
    noticed = len(outcomes) - len(missed) - cannot
    print(f"noticed: {noticed} of {len(outcomes)}; {cannot} cannot be seen (tools/unseen.py)")
    for one in missed:
        print(f"  nobody noticed {one.place.path}:{one.place.line}  + {one.now}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
