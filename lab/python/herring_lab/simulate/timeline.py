"""Computes the times of a training step, whose fusion buffers go through three stages.

1. A node with several workers sums the buffers of its workers.
2. The network averages the buffer over nodes.
3. The node copies the result to its workers.

Gradients fill buffers. Each stage takes one buffer after the other, in plan order, and the stages
work on different buffers at the same time. Only work that is left when the backward pass ends
lengthens the step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from herring import _core
from herring_lab.simulate.catalogue import Gradient
from herring_lab.simulate.options import DTYPES, WIRE_DTYPES


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A fusion buffer.

    Attributes:
      size: bytes on the wire.
      ready: seconds from the start of the step to the buffer's last gradient.
    """

    size: int
    ready: float


@dataclasses.dataclass(frozen=True)
class Stages:
    """The time that a buffer takes in each stage.

    Attributes:
      node: seconds per byte of the first stage, and of the last.
      pace: seconds per byte of the network.
      start: seconds that the network takes for each buffer in addition.
      latency: seconds from the end of the network's work on a buffer to its result.
    """

    node: float
    pace: float
    start: float = 0.0
    latency: float = 0.0


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The times of a step.

    Attributes:
      seconds: the length of the step.
      exposed: the part of it after the backward pass, in seconds.
      network: seconds for which the network works.
      node: seconds for which each of the node's two stages works.
      backlog: seconds of the network's work that are left when the last gradient is ready, although
        their buffers were ready before.
    """

    seconds: float
    exposed: float
    network: float
    node: float
    backlog: float


def _moment(step: float, backward: float, gradient: Gradient) -> float:
    return step * (1 - backward + backward * gradient.moment)


def fuse(
    gradients: Sequence[Gradient],
    dtype: str,
    wire_dtype: str,
    nodes: int,
    servers: int,
    step: float,
    backward: float,
) -> list[Buffer]:
    """Returns the fusion buffers that Herring's plan makes.

    Args:
      gradients: the gradients in order of production.
      dtype: the type of the gradients.
      wire_dtype: the type in which gradients are sent.
      nodes: the number of nodes with workers.
      servers: the number of dedicated servers.
      step: seconds of forward and backward pass.
      backward: the part of `step` that the backward pass takes.
    """
    narrow = DTYPES[dtype] / WIRE_DTYPES[wire_dtype]
    made = _core.fusion_buffers([each.elements for each in gradients], dtype, nodes, servers)
    return [
        Buffer(round(size / narrow), _moment(step, backward, gradients[last]))
        for size, last in made
    ]


def fuse_evenly(
    gradients: Sequence[Gradient], itemsize: float, size: float, step: float, backward: float
) -> list[Buffer]:
    """Returns buffers of whole gradients; a buffer is full when it has at least `size` bytes."""
    buffers, filled = [], 0.0
    for index, gradient in enumerate(gradients):
        filled += gradient.elements * itemsize
        if filled and (filled >= size or index == len(gradients) - 1):
            buffers.append(Buffer(round(filled), _moment(step, backward, gradient)))
            filled = 0.0
    return buffers


def play(buffers: Sequence[Buffer], stages: Stages, step: float) -> Timeline:
    """Computes when the buffers pass the stages.

    Args:
      buffers: the buffers in plan order.
      stages: the time of each stage.
      step: seconds of forward and backward pass.
    """
    gathered = sent = spread = network = node = backlog = 0.0
    for buffer in buffers:
        inside = stages.node * buffer.size
        gathered = max(gathered, buffer.ready) + inside
        if buffer.ready < buffers[-1].ready:
            backlog = stages.start + stages.pace * buffer.size
            backlog += max(sent, gathered) - buffers[-1].ready
        own = stages.start + stages.pace * buffer.size
        sent = max(sent, gathered) + own
        spread = max(spread, sent + stages.latency) + inside
        network += own
        node += inside
    end = max(step, spread)
    return Timeline(end, end - step, network, node, max(backlog, 0.0))
