"""Counts system calls, sleeps, processor time and bytes per round, for a worker and for a server.

  python benchmarks/counts.py                     8 + 8 hosts without a rate limit, 100 MB
  python benchmarks/counts.py --peer gloo         the same with Gloo's ring
  python benchmarks/counts.py --workers 4 --size 25M --json counts.json

The counts show where the time goes when processors are the limit. ``perf`` counts system calls
(tracepoints), the kernel counts sleeps and processor time of each thread, and the hosts' links
count bytes. In separate batches, perf samples the processes 999 times per second of processor time;
``--symbols`` names a build with symbols. The tool needs root and perf. Other load on the
machine changes a round's times, but hardly its counts.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import glob
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from harness import BenchJob, JobError, Layout

from herring.base.provenance import write_results
from herring_lab.emulate import Cluster, ClusterError
from herring_lab.emulate.hosts import HostCounters

_CALLS = {
    "send": ("sendmsg", "sendto", "sendmmsg", "writev", "write"),
    "lend pages (vmsplice, splice)": ("vmsplice", "splice"),
    "receive": ("recvmsg", "recvfrom", "recvmmsg", "readv", "read"),
    "wait for events": ("epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select"),
    "ask about the path (getsockopt)": ("getsockopt",),
    "futex": ("futex",),
}
_ALL = "all system calls"
#: Categories of samples: name, pattern of the file, pattern of the symbol. The first match wins.
_PLACES = (
    ("copying between kernel and user", r"^\[kernel", r"copy_(from|to)_iter|copy_user|_copy_|csum"),
    ("getting and clearing pages", r"^\[kernel", r"clear_page|page_fault|get_page|alloc_pages"),
    ("waking and switching threads", r"^\[kernel", r"switch|sched|wake|ttwu|pick_|irqrestore"),
    ("the rest of the kernel: TCP/IP", r"^\[(kernel|vdso)", r""),
    ("summing", r"_core", r"herring::reduce::"),
    ("copying in user space", r"", r"memcpy|memmove|memset"),
    ("the rest of Herring", r"_core", r""),
    ("Python, torch and other libraries", r"", r""),
)
_SETTLE = 0.5  # seconds until perf has started to count


@dataclasses.dataclass
class Counts:
    """The counts of one batch, added up over all processes of a kind.

    Attributes:
      calls: numbers of system calls by the names in `_CALLS`, and of all system calls.
      sleeps: how often a thread went to sleep until something woke it.
      preempted: how often a thread lost its processor to another thread.
      processor_seconds: processor time in user space and the kernel.
      sent_bytes: bytes that the hosts' links sent, headers included.
      received_bytes: bytes that the hosts' links received, headers included.
    """

    calls: dict[str, float] = dataclasses.field(default_factory=dict)
    sleeps: float = 0
    preempted: float = 0
    processor_seconds: float = 0
    sent_bytes: float = 0
    received_bytes: float = 0


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of process, worker or server, with its processes and the hosts they alone use."""

    name: str
    pids: Sequence[int]
    hosts: Sequence[int]


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, and prints a Markdown table.

    Returns:
      The exit status: 0 on success, 2 on errors.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workers", type=int, default=8, help="number of workers, and of servers (default: 8)"
    )
    parser.add_argument("--size", default="100M", help="size of the array (default: 100M)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds in a batch (default: 10)")
    parser.add_argument(
        "--batches", type=int, default=3, help="batches to count, and to sample (default: 3)"
    )
    parser.add_argument("--peer", default="herring", choices=("herring", "gloo"))
    parser.add_argument(
        "--symbols",
        default=next(iter(glob.glob("build/bindings/_core*.so")), ""),
        help="a build of the extension with symbols (default: build/bindings/_core*.so)",
    )
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    options = parser.parse_args(argv)
    if min(options.workers - 1, options.rounds, options.batches) < 1:
        parser.error("--workers must be at least 2, --rounds and --batches at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        document = measure(options)
    except (JobError, ClusterError, subprocess.CalledProcessError) as error:
        print(f"counts: {error}", file=sys.stderr)
        return 2
    print(table(document))
    if options.json:
        write_results(options.json, document, options)
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the job; returns medians per round and process, by kind."""
    workers = options.workers
    servers = workers if options.peer == "herring" else 0
    layout = Layout(range(workers), range(workers, workers + servers))
    # The first batch lets the credit settle. The results of the first and last batch are checked.
    batches = 2 + 2 * options.batches
    arguments = ["--sizes", options.size, "--op", "sum", "--check", "--warmup", "0"]
    arguments += ["--iterations", str(options.rounds), "--batches", str(batches), "--paced"]
    counted: dict[str, list[Counts]] = {}
    looked: dict[str, Counter[str]] = {}
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="herring-")))
        hosts = stack.enter_context(Cluster(workers + servers))
        job = stack.enter_context(BenchJob(hosts, layout, arguments, options.peer))
        job.wait_ready()
        kinds = [Kind("worker", job.worker_pids, range(workers))]
        if servers:
            kinds.append(Kind("server", job.server_pids, range(workers, workers + servers)))
        job.run_batch()
        for _ in range(options.batches):
            with counting(kinds, hosts, folder) as counts:
                job.run_batch()
            for kind in kinds:
                counted.setdefault(kind.name, []).append(counts[kind.name])
        for _ in range(options.batches):
            with looking(kinds, folder, options.symbols) as samples:
                job.run_batch()
            for kind in kinds:
                looked.setdefault(kind.name, Counter()).update(samples[kind.name])
        job.run_batch()
        result = job.finish()["results"][0]
    if result["wrong"]:
        raise JobError(f"{result['wrong']} wrong elements")
    quiet = result["batches_seconds"][1 : 1 + options.batches]
    document: dict[str, Any] = {
        "peer": options.peer,
        "workers": workers,
        "bytes": result["bytes"],
        "seconds": statistics.median(time for batch in quiet for time in batch),
    }
    for kind in kinds:
        share = 1 / (options.rounds * len(kind.pids))
        document[kind.name] = {**_medians(counted[kind.name], share), "places": {}}
        total = looked[kind.name].total()
        spent = document[kind.name]["processor_ms"]
        for place, _, _ in _PLACES:
            part = looked[kind.name][place] / total if total else 0.0
            document[kind.name]["places"][place] = part * spent
    return document


def _medians(batches: list[Counts], share: float) -> dict[str, Any]:
    def median(values: Sequence[float], scale: float = 1.0) -> float:
        return statistics.median(values) * share * scale

    names = [*_CALLS, _ALL]
    return {
        "calls": {name: median([batch.calls[name] for batch in batches]) for name in names},
        "sleeps": median([batch.sleeps for batch in batches]),
        "preempted": median([batch.preempted for batch in batches]),
        "processor_ms": median([batch.processor_seconds for batch in batches], 1e3),
        "sent_mb": median([batch.sent_bytes for batch in batches], 1e-6),
        "received_mb": median([batch.received_bytes for batch in batches], 1e-6),
    }


# --- counting ------------------------------------------------------------------------------------


@contextlib.contextmanager
def counting(
    kinds: Sequence[Kind], hosts: Cluster, folder: pathlib.Path
) -> Iterator[dict[str, Counts]]:
    """Counts what the processes do in the block, and fills the yielded mapping at its end."""
    found = {kind.name: Counts() for kind in kinds}
    names = [name for group in _CALLS.values() for name in group]
    events = ["raw_syscalls:sys_enter", *(f"syscalls:sys_enter_{name}" for name in names)]
    events = [event for event in events if _known(event)]
    files = {kind.name: folder / f"{kind.name}.csv" for kind in kinds}
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            command = ["perf", "stat", "-x,", "-o", str(files[kind.name]), "-e", ",".join(events)]
            stack.enter_context(_perf(command, kind.pids))
        time.sleep(_SETTLE)
        before = {kind.name: (_threads(kind.pids), _links(hosts, kind)) for kind in kinds}
        yield found
        for kind in kinds:
            (threads, links), own = before[kind.name], found[kind.name]
            now, moved = _threads(kind.pids), _links(hosts, kind) - links
            own.sleeps, own.preempted, own.processor_seconds = (
                after - then for after, then in zip(now, threads)
            )
            own.sent_bytes, own.received_bytes = moved.sent_bytes, moved.received_bytes
    for kind in kinds:
        numbers: dict[str, float] = {}
        for line in files[kind.name].read_text().splitlines():
            fields = line.split(",")
            if len(fields) > 2 and fields[0].isdecimal():
                numbers[fields[2].rpartition("sys_enter_")[2]] = float(fields[0])
        calls = found[kind.name].calls
        for group, members in _CALLS.items():
            calls[group] = sum(numbers.get(member, 0.0) for member in members)
        calls[_ALL] = numbers["raw_syscalls:sys_enter"]


def _known(event: str) -> bool:
    group, _, name = event.partition(":")
    return pathlib.Path(f"/sys/kernel/tracing/events/{group}/{name}").is_dir()


def _links(hosts: Cluster, kind: Kind) -> HostCounters:
    return hosts.total(kind.hosts)


def _threads(pids: Sequence[int]) -> tuple[float, float, float]:
    """Returns the sleeps, preemptions and processor seconds of all threads of the processes."""
    sleeps = lost = nanos = 0
    for pid in pids:
        for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
            text = (thread / "status").read_text()
            sleeps += int(re.findall(r"^voluntary_ctxt_switches:\s*(\d+)", text, re.M)[0])
            lost += int(re.findall(r"^nonvoluntary_ctxt_switches:\s*(\d+)", text, re.M)[0])
            nanos += int((thread / "schedstat").read_text().split()[0])
    return sleeps, lost, nanos / 1e9


# --- looking -------------------------------------------------------------------------------------


@contextlib.contextmanager
def looking(
    kinds: Sequence[Kind], folder: pathlib.Path, symbols: str
) -> Iterator[dict[str, Counter[str]]]:
    """Samples the processes during the block, and counts the samples by the names in `_PLACES`."""
    found: dict[str, Counter[str]] = {kind.name: Counter() for kind in kinds}
    files = {kind.name: folder / f"{kind.name}.data" for kind in kinds}
    cache = ["perf", "--buildid-dir", str(folder / "symbols")]
    if symbols:
        add = [*cache, "buildid-cache", "--add", symbols]
        subprocess.run(add, check=True, capture_output=True)
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            # Without -N, perf would cache the installed file, which has no symbols.
            command = [*cache, "record", "-q", "-N", "-F", "999", "-e", "cpu-clock"]
            stack.enter_context(_perf([*command, "-o", str(files[kind.name])], kind.pids))
        time.sleep(_SETTLE)
        yield found
    for kind in kinds:
        script = [*cache, "script", "-i", str(files[kind.name]), "-F", "ip,sym,dso"]
        done = subprocess.run(script, check=True, capture_output=True, text=True)
        for line in done.stdout.splitlines():
            sample = re.fullmatch(r"\s*[0-9a-f]+ (.*) \((.*)\)", line)
            if sample is not None:
                found[kind.name][_place(sample[2], sample[1])] += 1


def _place(file: str, symbol: str) -> str:
    for name, of_file, of_symbol in _PLACES:
        if re.search(of_file, file) and re.search(of_symbol, symbol):
            return name
    raise AssertionError("the last place matches every sample")


@contextlib.contextmanager
def _perf(command: Sequence[str], pids: Sequence[int]) -> Iterator[None]:
    """Runs perf on processes until the end of the block."""
    process = subprocess.Popen(
        [*command, "-p", ",".join(map(str, pids))],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    if process.returncode not in (0, -signal.SIGINT, 130):
        raise JobError(f"{' '.join(command[:2])} ended with {process.returncode}: {errors[-500:]}")


# --- showing -------------------------------------------------------------------------------------


def table(document: dict[str, Any]) -> str:
    """Returns the numbers as a Markdown table."""
    kinds = [name for name in ("worker", "server") if name in document]
    lines = [
        f"{document['peer']}, {document['workers']} workers, {document['bytes'] / 1e6:g} MB, "
        f"{1e3 * document['seconds']:.0f} ms while counting",
        "",
        f"| per round | {' | '.join(f'a {kind}' for kind in kinds)} |",
        "|---|" + "---|" * len(kinds),
    ]

    def row(name: str, values: Sequence[float]) -> str:
        return f"| {name} | {' | '.join(map(_show, values))} |"

    for name in (*_CALLS, _ALL):
        lines.append(row(name, [document[kind]["calls"][name] for kind in kinds]))
    for key, name in (
        ("sleeps", "sleeps, each with a wake-up"),
        ("preempted", "processor lost to another"),
        ("sent_mb", "MB sent"),
        ("received_mb", "MB received"),
        ("processor_ms", "ms of a processor"),
    ):
        lines.append(row(name, [document[kind][key] for kind in kinds]))
    for place, _, _ in _PLACES:
        lines.append(row(f"- {place}", [document[kind]["places"][place] for kind in kinds]))
    return "\n".join(lines)


def _show(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
