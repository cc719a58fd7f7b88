"""Rewrites the outputs in docs/tutorials/fashion.md by running the tutorial, as root.

Usage: python tools/make_tutorial.py [NAME ...]. Needs the package, the laboratory, PyTorch and the
data that the page names. A mark in the page, not visible when it is rendered, names the output in
the block below it: <!-- tutorial: status -->. The outputs have times of the machine, so no test
compares them; tests/python/test_fashion_resnet.py compares the lines of the example without their
numbers. The picture and its figures are those of benchmarks/time_to_accuracy.py.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tutorials" / "fashion.md"
SCRIPT = ["python", "examples/fashion_resnet.py"]
_BLOCK = r"(<!-- tutorial: {} -->\n+```\n).*?(^```\n)"
LIMIT = 900  # seconds that a command may take


class Started:
    """A command that runs, and the file to which it prints."""

    def __init__(self, command: Sequence[str], folder: Path, **settings: str) -> None:
        """Starts a command in the root of the repository."""
        self._said = folder / f"{secrets.token_hex(4)}.log"
        clean = {name: text for name, text in os.environ.items() if not name.startswith("HERRING_")}
        clean["PATH"] = f"{Path(sys.executable).parent}:{clean['PATH']}"
        clean["XDG_RUNTIME_DIR"] = str(folder)  # for the socket that status() asks
        with self._said.open("w", encoding="utf-8") as file:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env={**clean, **settings}, stdout=file, stderr=subprocess.STDOUT
            )

    def wait_for(self, text: str) -> None:
        """Waits until the command has printed a text."""
        end = time.monotonic() + LIMIT
        while text not in self._said.read_text(encoding="utf-8"):
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                raise SystemExit(f"no '{text}' in:\n{self._said.read_text(encoding='utf-8')}")
            time.sleep(0.1)

    def output(self) -> str:
        """Returns what the command has printed, when it has ended well."""
        status = self.process.wait(LIMIT)
        text = self._said.read_text(encoding="utf-8")
        if status:
            raise SystemExit(f"status {status}:\n{text}")
        return text


def status(folder: Path, *options: str) -> str:
    """Returns what `herring status` prints about the job, even if others run on this machine."""
    (socket,) = (folder / "herring").glob("*.sock")
    return Started(["herring", "status", str(socket), *options], folder).output()


def alone(folder: Path) -> Iterator[tuple[str, str]]:
    """Trains on one machine."""
    yield "alone", Started(["herring", "run", "-n", "2", "--", *SCRIPT], folder).output()


def emulated(folder: Path) -> Iterator[tuple[str, str]]:
    """Trains on emulated hosts, over Herring and over Gloo."""
    lab = ["herring", "lab", "run", "--rate", "10mbit", "--workers", "2"]
    ours = Started([*lab, "--servers", "2", "--", *SCRIPT], folder)
    ours.wait_for("step 50:")
    yield "status", status(folder)
    yield "herring", ours.output()
    yield "gloo", Started([*lab, "--", *SCRIPT, "--gloo"], folder).output()


def failover(folder: Path) -> Iterator[tuple[str, str]]:
    """Trains while a server is killed."""
    run = ["herring", "run", "-n", "2", "--nodes", "2", "--servers", "2", "--"]
    job = Started([*run, *SCRIPT], folder, HERRING_FAILOVER="true")
    job.wait_for("step 50:")
    found = json.loads(status(folder, "--json"))
    os.kill(found["servers"][0]["pid"], 9)
    job.wait_for("is replaced by")
    yield "status-lost", status(folder)
    yield "failover", job.output()


def elastic(folder: Path) -> Iterator[tuple[str, str]]:
    """Trains with two workers, and a third one joins."""
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_text(secrets.token_hex(32), encoding="utf-8")
    names = {"HERRING_SECRET_FILE": str(secret), "HERRING_ELASTIC": "127.0.0.1:29700"}
    script = [*SCRIPT, "--steps", "400", "--every", "100"]
    lobby = Started(["herring", "rendezvous", "-n", "2"], folder, **names)
    try:
        workers = [Started(script, folder, HERRING_RANK=str(rank), **names) for rank in range(2)]
        workers[0].wait_for("workers: 2")
        workers.append(Started(script, folder, HERRING_RANK="2", **names))
        workers[0].wait_for("workers: 3")
        outputs = [worker.output() for worker in workers]
        yield "elastic", outputs[0]
    finally:
        lobby.process.terminate()
        lobby.process.wait()


SCENES: dict[str, Callable[[Path], Iterator[tuple[str, str]]]] = {
    "alone": alone,
    "emulated": emulated,
    "failover": failover,
    "elastic": elastic,
}


# What other work on the machine causes, and what torch says of network namespaces.
_LEFT_OUT = re.compile(r" late by | at the end of the job: | has waited |\[W\d+ |^herring lab: ")


def _lines(text: str) -> str:
    """Returns the lines that a quiet machine prints, too."""
    kept = (line for line in text.splitlines() if not _LEFT_OUT.search(line))
    return "".join(f"{line.rstrip()}\n" for line in kept)


def write(name: str, text: str) -> None:
    """Writes an output into the page."""
    new = _lines(text)
    block = re.compile(_BLOCK.format(name), re.DOTALL | re.MULTILINE)
    page, count = block.subn(
        lambda found: found[1] + new + found[2], PAGE.read_text(encoding="utf-8")
    )
    if count != 1:
        raise SystemExit(f"{PAGE.name} has {count} marks for '{name}'")
    PAGE.write_text(page, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tutorial, and writes the page."""
    parser = argparse.ArgumentParser(description="Rewrites the outputs of the tutorial.")
    parser.add_argument("names", nargs="*", choices=[[], *SCENES], metavar="NAME")
    chosen = parser.parse_args(arguments).names or list(SCENES)
    for scene in chosen:
        with tempfile.TemporaryDirectory(prefix="herring-tutorial-") as folder:
            for name, text in SCENES[scene](Path(folder)):
                write(name, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
