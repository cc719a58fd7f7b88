"""A training step in time: gradients fill fusion buffers, which go through three stages.

1. the node brings a buffer together and adds (where it has several workers),
2. the network averages it over nodes,
3. the node spreads the result.

Buffers go one after the other, in plan order, and each stage works on one while the others work on
others; only what is not done when the backward pass ends lengthens the step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from herring import _core
from herring_lab.simulate.catalogue import Gradient
from herring_lab.simulate.options import DTYPES

__all__ = ["Buffer", "Stages", "Timeline", "fuse", "fuse_evenly", "play"]


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A fusion buffer.

    Attributes:
      size: bytes on the wire.
      ready: seconds from the begin of the step to its last gradient.
    """

    size: int
    ready: float


@dataclasses.dataclass(frozen=True)
class Stages:
    """What a buffer takes.

    Attributes:
      node: seconds per byte of the first stage and of the last.
      pace: seconds per byte of the network.
      start: seconds that each buffer takes the network besides.
      latency: seconds from the network's being done with a buffer to its result.
    """

    node: float
    pace: float
    start: float = 0.0
    latency: float = 0.0


@dataclasses.dataclass(frozen=True)
class Timeline:
    """A step.

    Attributes:
      seconds: from its begin to its end.
      exposed: of these, after the backward pass.
      network: seconds that the network works.
      node: seconds that the busier of the node's two stages works.
      backlog: seconds of the network's work that is left when the last gradient is there, which
        could have been done before.
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
      gradients: in order of production.
      dtype: of the gradients.
      wire_dtype: that they are sent in.
      nodes: with workers.
      servers: dedicated ones.
      step: seconds of forward and backward pass.
      backward: the backward pass as a part of that.
    """
    narrow = DTYPES[dtype] // DTYPES[wire_dtype]
    made = _core.fusion_buffers([each.elements for each in gradients], dtype, nodes, servers)
    return [Buffer(size // narrow, _moment(step, backward, gradients[last])) for size, last in made]


def fuse_evenly(
    gradients: Sequence[Gradient], itemsize: int, size: float, step: float, backward: float
) -> list[Buffer]:
    """Returns buffers of whole gradients, closed when they have at least `size` bytes."""
    buffers, filled = [], 0
    for index, gradient in enumerate(gradients):
        filled += gradient.elements * itemsize
        if filled and (filled >= size or index == len(gradients) - 1):
            buffers.append(Buffer(filled, _moment(step, backward, gradient)))
            filled = 0
    return buffers


def play(buffers: Sequence[Buffer], stages: Stages, step: float) -> Timeline:
    """Lets buffers go through the stages.

    Args:
      buffers: in plan order.
      stages: what they take.
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
