"""Averages the gradients that a Keras optimizer gets, for each of Keras' backends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from herring.arrays.calls import called
from herring.arrays.collectives import allgather_object
from herring.arrays.gradients import Averager, GradientRounds, Source, agree
from herring.errors import ConfigurationError, InvalidArgumentError

__all__ = ["make_averager"]


def make_averager(name: str, options: dict[str, Any]) -> Any:
    """What averages for the backend that Keras runs on.

    Args:
      name: of the operations; the same on all ranks.
      options: op, wire_dtype, buffer_bytes, sparse and group of `DistributedOptimizer`.

    Returns:
      An object with ``average(gradients, variables)``, which returns a list.

    Raises:
      ConfigurationError: a backend without gradients.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from herring.tensorflow.averaging import TensorAverager

        return TensorAverager(name, **options)
    if backend == "torch":
        return TorchAverager(name, **options)
    if backend == "jax":
        return JaxAverager(name, **options)
    raise ConfigurationError(
        f"Keras runs on {backend!r}; Herring averages on tensorflow, torch and jax"
    )


class HostAverager(Averager):
    """Averages lists of gradients that reach the host: a plan per list of variables."""

    def __init__(self, name: str, *, sparse: str, **options: Any) -> None:
        if sparse != "densify":
            raise InvalidArgumentError(
                f"sparse={sparse!r} is for Keras on TensorFlow; this backend has dense gradients"
            )
        super().__init__(name, **options)

    def average(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Averages over all ranks (collective).

        Args:
          gradients: per variable a tensor of the backend, or None.
          variables: keras.Variable, in an order that is the same on all ranks.

        Returns:
          Per variable the average, or None where no rank had a gradient in the first call.

        Raises:
          InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `GradientRounds`.
          ShutdownError: the job in which the optimizer was wrapped has ended.
        """
        gradients = list(gradients)
        if self._is_alone():
            return gradients
        sources = tuple(
            Source(v.path, tuple(v.shape), keras.backend.standardize_dtype(v.dtype))
            for v in variables
        )
        present = {i: gradient for i, gradient in enumerate(gradients) if gradient is not None}
        rounds = self._rounds_of(sources, lambda name: self.plan(name, sources, list(present)))
        for i, average in zip(rounds.used, self.run(rounds, present)):
            gradients[i] = average
        return gradients

    def plan(self, name: str, sources: Sequence[Source], present: Sequence[int]) -> Any:
        """What a new list of variables is averaged by (collective); has ``used`` as those have."""
        return GradientRounds(sources, present, name=name, **self._options)

    def run(self, rounds: Any, present: dict[int, Any]) -> Sequence[Any]:
        """One round of what `plan` made; returns a tensor for each of ``rounds.used``."""
        raise NotImplementedError


class TorchAverager(HostAverager):
    """For the backend torch: averages come in new tensors, on the device of the variable."""

    def run(self, rounds: GradientRounds, present: dict[int, Any]) -> Sequence[Any]:
        """One round."""
        import torch

        dense = {
            i: (one.to_dense() if one.layout != torch.strided else one).detach()
            for i, one in present.items()
        }
        sources = rounds.sources
        hosts = [
            one.to("cpu", getattr(torch, sources[i].dtype)).contiguous() for i, one in dense.items()
        ]
        rounds.put(list(dense), hosts)
        averages = [
            torch.empty(sources[i].shape, dtype=getattr(torch, sources[i].dtype))
            for i in rounds.used
        ]
        rounds.finish_into(averages)
        device = next((one.device for one in dense.values()), "cpu")
        return [one.to(device) for one in averages]


class Keyed(NamedTuple):
    """A list of variables whose gradients are reduced by operations of a compiled program.

    Attributes:
      name: of the operations.
      sources: the variables.
      used: places of those that have a gradient on some rank.
    """

    name: str
    sources: Sequence[Source]
    used: list[int]


class JaxAverager(HostAverager):
    """For the backend jax, in compiled functions too.

    Gradients on CPUs go by the handler of `herring.jax`, each few as soon as they are there. What
    that cannot do goes by a callback of Python at the end of the backward pass.
    """

    def plan(self, name: str, sources: Sequence[Source], present: Sequence[int]) -> Any:
        """`Keyed` where all ranks can."""
        from herring.jax.calls import implementation

        way, group = f"{name}.way", self._options["group"]
        with called("allgather", way, group):
            able = (
                implementation() == "ffi"
                and not self._options["wire_dtype"]
                and not self._options["buffer_bytes"]
                and not any(source.dtype.startswith("complex") for source in sources)
            )
        if not all(allgather_object(able, name=way, group=group)):
            return super().plan(name, sources, present)
        used = sorted(agree(sources, present, name=name, group=group))
        return Keyed(name, sources, used)

    def run(self, rounds: Any, present: dict[int, Any]) -> Sequence[Any]:
        """One round."""
        run = self._by_handler if isinstance(rounds, Keyed) else self._by_callback
        sources = rounds.sources
        return run(rounds, {i: one.astype(sources[i].dtype) for i, one in present.items()})

    def _by_handler(self, keyed: Keyed, present: dict[int, Any]) -> Sequence[Any]:
        import jax.numpy as jnp

        from herring.jax.collectives import reduce_leaves

        sources, refusal = keyed.sources, ""
        if more := [i for i in present if i not in keyed.used]:
            refusal = (
                f"{keyed.name}: there is a gradient for {sources[more[0]].name!r}, which had none "
                "on any rank in the first step; use all variables in the first step, or wrap the "
                "optimizer again where some are unfrozen"
            )
        leaves = [
            present[i] if i in present else jnp.zeros(sources[i].shape, sources[i].dtype)
            for i in keyed.used
        ]
        op, group = self._options["op"], self._options["group"]
        return reduce_leaves(leaves, op, name=keyed.name, group=group, refusal=refusal)

    def _by_callback(self, rounds: GradientRounds, present: dict[int, Any]) -> Sequence[Any]:
        import jax
        from jax.experimental import io_callback

        sources = rounds.sources
        shapes = [jax.ShapeDtypeStruct(sources[i].shape, sources[i].dtype) for i in rounds.used]
        indices = list(present)

        def exchange(*arrays: Any) -> list[np.ndarray]:
            rounds.put(indices, [np.asarray(array) for array in arrays])
            return rounds.finish([one.dtype for one in shapes])

        return io_callback(exchange, shapes, *present.values(), ordered=True)
