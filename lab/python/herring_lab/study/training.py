"""Measures the scaling efficiency of training, and the gain of servers beside its models.

These are the counterparts of figure 11 and section IV.E of the Herring paper in the lab.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import statistics
import sys
from typing import Any

from herring.base.parts import install_command
from herring.base.units import counted
from herring.bench import models
from herring.errors import ConfigurationError
from herring_lab.competitors import MissingLibraryError, missing
from herring_lab.emulate import folders
from herring_lab.emulate.cluster import ClusterError
from herring_lab.emulate.runner import Plan, run
from herring_lab.report import Chart, Table
from herring_lab.simulate import bert
from herring_lab.study.bench import Network, Point, measure
from herring_lab.study.experiments import Scale, costs

# Section IV.B with figure 11, at 512 GPUs: Herring keeps 85 % of a node's throughput. It has 1.78
# times the throughput of Horovod, which therefore keeps 48 %. Horovod averages after the backward
# pass (table I: overlapping gains nothing with NCCL). So an all-reduce takes 1 / 0.48 - 1 = 1.09 of
# the computing: "nearly half of the training time".
_HOROVOD_EFFICIENCY = 0.85 / 1.78
#: Herring's averaging divided by computing: half the time of an all-reduce (section IV.A).
COMMUNICATION = (1 / _HOROVOD_EFFICIENCY - 1) / 2

_WARMUP = 3  # the first step records the order, and in the second torch remakes its buckets
_STRATEGIES = ("herring", "ddp", "ring", "horovod")
_SHOWN = {
    "herring": "Herring",
    "ddp": "DDP over Gloo",
    "ring": "ring, not overlapped",
    "horovod": "Horovod over Gloo",
}


def _averaged(
    buffers: int, nbytes: float, compute_seconds: float, seconds_per_byte: float
) -> float:
    """Returns when all equal slices are averaged, one after the other, as gradients fill them."""
    elements = bert.scaled_elements(nbytes)
    size = sum(elements) / buffers
    end = filled = 0.0
    sent = 0
    for variable, moment in bert.schedule():
        filled += elements[variable]
        whole = buffers if variable == 0 else int(filled / size)
        if whole > sent:
            end = max(end, moment * compute_seconds) + (whole - sent) * 4 * size * seconds_per_byte
            sent = whole
    return end


def model_step(
    strategy: str, hosts: int, nbytes: float, bandwidth: float, compute_seconds: float
) -> float:
    """Models how long a step takes if only links and computing take time.

    Args:
      strategy: "herring" (with as many dedicated servers as hosts), "ddp", "ring" or "horovod"
        (which sends gradients when they are produced, in no fixed buffers).
      hosts: the number of hosts with a worker each.
      nbytes: bytes of all gradients.
      bandwidth: bytes per second of a link, in each direction.
      compute_seconds: the computing time of a step.

    Returns:
      Seconds.
    """
    if hosts == 1:
        return compute_seconds
    if strategy == "herring":
        speed = models.herring_time(hosts, 1.0, bandwidth)
        return _averaged(bert.FUSION_BUFFERS, nbytes, compute_seconds, speed)
    speed = models.ring_time(hosts, 1.0, bandwidth)
    if strategy == "ddp":
        return _averaged(bert.DDP_BUCKETS, nbytes, compute_seconds, speed)
    if strategy == "horovod":
        return _averaged(len(bert.variables()), nbytes, compute_seconds, speed)
    return compute_seconds + nbytes * speed


def measure_training(
    network: Network, strategy: str, hosts: int, nbytes: float, compute_seconds: float, steps: int
) -> dict[str, Any]:
    """Trains on `hosts` hosts with a worker each; Herring gets as many servers in addition.

    Returns:
      The worker's results, with ``drops`` and ``retransmits`` of the whole network.

    Raises:
      ClusterError: the job failed; the message ends with the job's last output.
    """
    servers = hosts if strategy == "herring" and hosts > 1 else 0
    with folders.temporary("study") as directory:
        result, log = pathlib.Path(directory, "result.json"), pathlib.Path(directory, "log")
        command = [sys.executable, "-m", "herring_lab.study.training_worker"]
        command += [
            "--strategy",
            strategy,
            "--bytes",
            str(nbytes),
            "--compute",
            str(compute_seconds),
        ]
        command += ["--warmup", str(_WARMUP), "--steps", str(steps), "--json", str(result)]
        plan = Plan(command, hosts, servers, timeout=600 + 10 * compute_seconds * steps)
        with network.cluster(plan.hosts) as cluster, log.open("wb") as output:
            status = run(cluster, plan, output.fileno())
            counters = cluster.total()
        if status != 0:
            raise ClusterError(
                f"{_SHOWN[strategy]} on {counted(hosts, 'host')} ended with {status}: "
                f"{log.read_text(errors='replace')[-1500:]}"
            )
        found = json.loads(result.read_text())
    return {**found, "drops": counters.switch_drops, "retransmits": counters.retransmits}


def training(scale: Scale) -> Table:
    """Trains with the gradients of BERT-large over the number of hosts (paper, figure 11).

    Raises:
      MissingLibraryError: torch is missing.
      ConfigurationError: the computing time of a step is not above 0.
      InvalidArgumentError: a step is too short for its bytes to be divided among the gradients.
    """
    compute, network = scale.compute_seconds, scale.network
    if importlib.util.find_spec("torch") is None:
        raise MissingLibraryError(f"training needs torch: {install_command('torch')}")
    if not compute > 0:
        raise ConfigurationError(f"--compute is {compute:g} s; it must be more than 0")
    nbytes = COMMUNICATION * compute * network.bandwidth
    bert.scaled_elements(nbytes)  # raises if `nbytes` is too small
    hosts = sorted({1, *(scale.hosts[:1] if scale.quick else scale.hosts)})
    reason = missing("horovod")
    strategies = [name for name in _STRATEGIES if not (name == "horovod" and reason)]
    points = [(number, strategy) for number in hosts for strategy in strategies]
    rows: list[dict[str, Any]] = []
    alone: dict[str, float] = {}
    for index, (number, strategy) in enumerate(points):
        scale.report(index, len(points), f"{_SHOWN[strategy]}, {counted(number, 'host')}")
        found = measure_training(network, strategy, number, nbytes, compute, scale.iterations)
        step = statistics.median(found["step_seconds"])
        alone.setdefault(strategy, step)
        first = rows[index - index % len(strategies)] if index % len(strategies) else None
        rows.append(
            {
                "strategy": _SHOWN[strategy],
                "hosts": number,
                "step_seconds": step,
                "model_step_seconds": model_step(
                    strategy, number, nbytes, network.bandwidth, compute
                ),
                "steps_per_second_of_all": number / step,
                "efficiency": alone[strategy] / step,
                "herring_is_faster_by": step / first["step_seconds"] if first else 1.0,
                "late_seconds": statistics.median(found["last_gradient_seconds"]) - compute,
                "processor_seconds": found["processor_seconds"],
                "retransmits": found["retransmits"],
            }
        )
        rows[-1]["model_efficiency"] = compute / rows[-1]["model_step_seconds"]
    title = (
        f"BERT-large's gradients in {nbytes / 1e6:.2f} MB, {compute:g} s of computing per step "
        f"(slept), {network.rate_bits / 1e6:g} Mbit/s"
    )
    notes = [
        "workers sleep instead of computing: a step has real hooks and real averaging, but no "
        "multiplications; its seconds are medians over steps of the job, from the end of one "
        f"step on the last worker to the end of the next, after {_WARMUP} other steps",
        "efficiency: throughput per host relative to the same strategy on one host; Herring has as "
        "many dedicated server hosts as workers, the others have none",
        f"averaging over the links takes Herring {COMMUNICATION:.3f} of the computing, as in the "
        "paper at 512 GPUs; models count links and computing alone",
        "late: how late the last gradient comes, because processors are busy; processor seconds: "
        "of all workers in a step",
        *([f"skipped: horovod: {reason}"] if reason else []),
    ]
    chart = Chart(
        "hosts",
        ["efficiency", "model_efficiency"],
        "number of workers, one per host",
        "efficiency (throughput per host, of one alone)",
        by="strategy",
    )
    return Table("training", title, rows, chart, notes)


def cost_check(scale: Scale) -> Table:
    """Measures what k dedicated servers gain for four workers, beside the models of `costs`.

    Steps do not compute, so that computing does not hide the gain.
    """
    network, size = scale.network, scale.size
    nodes = 2 if scale.quick else 4
    table = costs(nodes, size, network.bandwidth, 0.0, scale.node_price, scale.server_price)
    rows: list[dict[str, Any]] = []
    for index, model in enumerate(table.rows):
        k = model["servers"]
        scale.report(index, len(table.rows), f"{nodes} workers, {counted(k, 'dedicated server')}")
        seconds = measure(network, Point(nodes, k, size), scale.iterations)["p50_seconds"]
        none = rows[0]["seconds"] if rows else seconds
        price = 1 + k * scale.server_price / (nodes * scale.node_price)
        rows.append(
            {
                "servers": k,
                "seconds": seconds,
                "model_seconds": model["communication_seconds"],
                "measured_by_model": seconds / model["communication_seconds"],
                "faster_by": none / seconds,
                "model_faster_by": model["faster_by"],
                "price_by_none": price * seconds / none,
                "model_price_by_none": model["price_by_none"],
            }
        )
    title = f"{nodes} nodes, {size / 1e6:g} MB, without computing: models checked in the lab"
    notes = [
        f"a node costs {scale.node_price:g} and a server {scale.server_price:g} per hour; price of "
        "an all-reduce relative to that without dedicated servers",
    ]
    chart = Chart(
        "servers",
        ["seconds", "model_seconds"],
        "number of dedicated servers",
        "time of an all-reduce (s)",
        names={"seconds": "measured", "model_seconds": "formula of shared load"},
    )
    return Table("cost-check", title, rows, chart, notes)
