"""`herring check --tune`: finds the fastest way of adding gradients on this machine's GPUs.

For each way (the setting node_stage), a job measures planned rounds with the benchmark
`herring.bench`, which also compares the results with exact ones.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from herring.base.parts import install_command
from herring.base.units import counted
from herring.command.lines import Line, last_lines, run_job
from herring.errors import ConfigurationError
from herring.launch.commands import module_command
from herring.rendezvous.settings import value_of

_STAGES = ("host", "staged", "ipc")  # "auto" takes the last one that works
_BYTES = 64_000_000
_MOST_RANKS = 8
_JOB_SECONDS = 120  # loading torch with CUDA on all ranks may take most of it
_WARMUP = 5  # the host adds in the first two rounds of a plan
_ITERATIONS = 20
_WORTH_IT = 1.05
_NAME = "GPU rounds"
_MOST_REASONS = 3
# Log lines of ranks that cannot use the requested stage.
_REASONS = {
    "host": re.compile(r"processors add for (GPU \d+: .*)"),
    "staged": re.compile(r"(GPU \d+) reaches its neighbours through host memory(: .*)"),
}
_MISSING = re.compile(r"ConfigurationError: --device cuda: (.*)")


@dataclasses.dataclass(frozen=True)
class Round:
    """The result of the job for one stage.

    Attributes:
        stage: The requested stage.
        added: The stage that was used after the first rounds; empty if the job failed.
        seconds: Time of the median round, on its slowest rank.
        why: Lines that say why another stage was used, or why the job failed.
        status: The exit status of the job.
    """

    stage: str
    added: str = ""
    seconds: float = 0.0
    why: str = ""
    status: int = 0

    @property
    def available(self) -> bool:
        """Whether the requested stage was used."""
        return self.added == self.stage

    def to_json(self) -> dict[str, Any]:
        """Returns an entry of ``stages`` in JSON; an unavailable stage has no times."""
        return {
            "stage": self.stage,
            "available": self.available,
            "used": self.added or None,
            "median_seconds": self.seconds if self.available else None,
            "bytes_per_second_per_rank": _BYTES / self.seconds if self.available else None,
            "why": self.why,
        }


def tune(described: Mapping[str, Any], why: str) -> tuple[list[Line], dict[str, Any] | None]:
    """Measures each stage in a separate job, one after the other.

    Args:
        described: The result of ``_core.describe_devices``; empty if there are no GPUs.

    Returns:
        Lines of the report, and the figures for JSON, or None if nothing was measured.
    """
    if missing := _missing(described, why):
        return [missing], None
    gpus = len(described["devices"])
    ranks = min(max(gpus, 2), _MOST_RANKS)
    try:
        asked = value_of(os.environ, "HERRING_NODE_STAGE")
        threads = value_of(os.environ, "HERRING_NODE_THREADS") or _node_threads(ranks)
    except ConfigurationError as error:
        return [Line(_NAME, f"not measured: {error}", "fail", "correct this variable")], None
    rounds = []
    for stage in _STAGES:
        rounds.append(_measure(stage, ranks))
        if not rounds[0].added:
            return [_failed(rounds[0])], None  # the other stages need at least what this one needs
    found = judge(rounds, ranks, gpus, threads, asked)
    figures = {
        "bytes": _BYTES,
        "ranks": ranks,
        "gpus": gpus,
        "threads_per_rank": threads,
        "auto": rounds[-1].added or None,
        "stages": [one.to_json() for one in rounds],
    }
    return found, figures


def judge(rounds: Sequence[Round], ranks: int, gpus: int, threads: int, asked: str) -> list[Line]:
    """Makes the table of all stages, the first of which did not fail, and recommends one."""
    shared = ", which share GPU 0" if gpus < ranks else f" on {ranks} of {counted(gpus, 'GPU')}"
    layout = f"planned rounds of {_BYTES // 10**6} MB, {counted(ranks, 'rank')}{shared}"
    found = [Line(_NAME, layout), *(_line(one, threads) for one in rounds)]
    fastest = min((one for one in rounds if one.available), key=lambda one: one.seconds)
    last = rounds[-1]
    name = "node_stage auto"
    variable = f"set HERRING_NODE_STAGE={fastest.stage} in the environment of all ranks"
    if not last.added:
        # "auto" would try the last stage, too, and fail in the same way.
        text = f"not known: {last.stage} failed"
        return [*found, Line(name, text, "fail", f"until that is solved, {variable}")]
    text = f"takes {last.added}"
    used = last.added
    if asked != "auto":
        text += f"; HERRING_NODE_STAGE={asked} is set here"
        used = next((one.added for one in rounds if one.stage == asked), "") or used
    now = next(one for one in rounds if one.stage == used)
    if not now.available or now.seconds <= _WORTH_IT * fastest.seconds:
        return [*found, Line(name, text)]
    gain = 100 * (now.seconds / fastest.seconds - 1)
    text += f"; {fastest.stage} is {gain:.0f} % faster than {used}"
    return [*found, Line(name, text, "note", variable)]


def _missing(described: Mapping[str, Any], why: str) -> Line | None:
    """Returns a line about what is missing, or None if a job can be tried."""
    advice = "needs a GPU and its driver, and a CUDA_VISIBLE_DEVICES that does not hide the GPU"
    if not described:
        return Line(_NAME, f"not measured: no GPU ({why})", "fail", f"--tune {advice}")
    if not described["devices"]:
        return Line(_NAME, "not measured: the driver reports no GPU", "fail", f"--tune {advice}")
    unusable = [str(one["refused"]) for one in described["devices"] if one["refused"]]
    if unusable:
        text = f"not measured: {'; '.join(unusable)}"
        advice = "Herring cannot use arrays on such a GPU; CUDA_VISIBLE_DEVICES can exclude it"
        return Line(_NAME, text, "fail", advice)
    if importlib.util.find_spec("torch") is None:
        advice = f"PyTorch holds the arrays on GPUs: {install_command('torch')}"
        return Line(_NAME, "not measured: torch is not installed", "fail", advice)
    return None


def _node_threads(ranks: int) -> int:
    from herring import _core

    return int(_core.node_threads(ranks))


def _measure(stage: str, ranks: int) -> Round:
    """Runs the job for a stage."""
    variables = {"HERRING_NODE_STAGE": stage, "HERRING_LOG_LEVEL": "info"}  # says why not
    with tempfile.TemporaryDirectory(prefix="herring-tune-") as folder:
        file = Path(folder) / "planned.json"
        command = [*module_command("herring.bench"), "planned", "--device", "cuda", "--check"]
        command += ["--sizes", str(_BYTES), "--warmup", str(_WARMUP)]
        command += ["--iterations", str(_ITERATIONS), "--json", str(file)]
        job = run_job(["-n", str(ranks)], command, _JOB_SECONDS, variables)
        if job.returncode != 0 or not file.is_file():
            return Round(stage, why=_cause(job.stdout), status=job.returncode)
        document = json.loads(file.read_text(encoding="utf-8"))
    seconds = statistics.median(document["results"][0]["times_seconds"])
    added = document["details"]["node_stage"]
    return Round(stage, added, seconds, "" if added == stage else _reasons(job.stdout, added))


def _cause(said: str) -> str:
    """Returns why a job failed, from what it printed."""
    missing = _MISSING.search(said)
    return missing[1] if missing else last_lines(said)


def _reasons(said: str, added: str) -> str:
    """Returns why ranks use a lesser stage, from what the job logged; a line for each reason."""
    found = ("".join(match.groups()) for match in _REASONS[added].finditer(said))
    return "\n".join(list(dict.fromkeys(found))[:_MOST_REASONS])


def _failed(one: Round) -> Line:
    return Line(f"node_stage {one.stage}", f"exit status {one.status}", "fail", one.why)


def _line(one: Round, threads: int) -> Line:
    """Returns a row of the table."""
    if not one.added:
        return _failed(one)
    name = f"node_stage {one.stage}"
    if not one.available:
        return Line(name, f"not available here: {one.added} was used", "note", one.why)
    text = f"{1e3 * one.seconds:9.3f} ms {_BYTES / one.seconds / 1e9:8.2f} GB/s per rank"
    if one.stage == "host":
        text += f"   {counted(threads, 'thread')} per rank (HERRING_NODE_THREADS)"
    return Line(name, text)
