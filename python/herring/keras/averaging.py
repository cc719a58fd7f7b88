"""Averages the gradients that a Keras optimizer receives, on every backend of Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from herring.arrays.calls import CallOptions, called
from herring.arrays.gradients import Averager, GradientRounds, Source, agree
from herring.arrays.objects import allgather_plain
from herring.errors import ConfigurationError, InvalidArgumentError


def make_averager(name: str, options: dict[str, Any], *, numbered: bool = False) -> Any:
    """Creates the averager for the backend that Keras runs on.

    Args:
      options: the arguments op, wire_dtype, buffer_bytes, sparse and group of
        `DistributedOptimizer`.
      numbered: whether `name` is the same for several averagers, which get numbers.

    Returns:
      An object with a method ``average(gradients, variables)``, which returns a list.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from herring.tensorflow.averaging import TensorAverager

        return TensorAverager(name, numbered=numbered, **options)
    if backend == "torch":
        return TorchAverager(name, numbered=numbered, **options)
    if backend == "jax":
        return JaxAverager(name, numbered=numbered, **options)
    raise ConfigurationError(
        f"Keras runs on {backend!r}; Herring averages on tensorflow, torch and jax"
    )


class HostAverager(Averager):
    """Averages lists of gradients in host memory, with one plan for each list of variables."""

    def __init__(self, name: str, *, sparse: str, **options: Any) -> None:
        if sparse != "densify":
            raise InvalidArgumentError(
                f"sparse={sparse!r} is for Keras on TensorFlow; this backend has dense gradients"
            )
        super().__init__(name, **options)

    def average(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Averages gradients over all ranks (collective).

        Returns:
          For each variable, the average, or None if no rank had a gradient in the first call.

        Raises:
          InvalidArgumentError: a gradient has an unsupported dtype, or belongs to a variable that
            had no gradient on any rank in the first call.
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
        for i, average in zip(rounds.used, self.run(rounds, present, variables)):
            gradients[i] = average
        return gradients

    def plan(self, name: str, sources: Sequence[Source], present: Sequence[int]) -> Any:
        """Prepares the averaging of a new list of variables (collective).

        Returns:
          An object for `run`, with the attributes ``sources`` and ``used`` of `GradientRounds`.
        """
        return GradientRounds(sources, present, name=name, **self._options)

    def run(self, rounds: Any, present: dict[int, Any], variables: Sequence[Any]) -> Sequence[Any]:
        """Runs one round.

        Args:
          present: this rank's gradients, by their places in ``rounds.sources``.

        Returns:
          A tensor with the average for each place in ``rounds.used``.
        """
        raise NotImplementedError


class TorchAverager(HostAverager):
    """Averages on the backend torch; averages are new tensors on the variables' devices."""

    def run(
        self, rounds: GradientRounds, present: dict[int, Any], variables: Sequence[Any]
    ) -> Sequence[Any]:
        """Runs one round."""
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
            torch.empty(sources[i].shape, dtype=getattr(torch, sources[i].dtype), device="cpu")
            for i in rounds.used
        ]
        rounds.finish_into(averages)
        # This rank may have no gradient, so only the variables tell where an average is needed.
        return [one.to(variables[i].value.device) for i, one in zip(rounds.used, averages)]


class Keyed(NamedTuple):
    """A list of variables whose gradients are reduced by operations of a compiled program.

    Attributes:
      used: places in `sources` of the variables that have a gradient on some rank.
    """

    name: str
    sources: Sequence[Source]
    used: list[int]


class JaxAverager(HostAverager):
    """Averages on the backend jax, also in compiled functions.

    The handler of `herring.jax` reduces gradients on CPUs, in small lists, as soon as they are
    computed. A Python callback at the end of the backward pass reduces what the handler cannot.
    """

    _may_follow = False  # Compiled functions keep what ranks have agreed on in their generation.

    def begin_anew(self) -> bool:
        """Averages in the present job from now on; returns whether it has averaged in another one.

        What was traced before must be traced anew, on all ranks.
        """
        before = self._job
        if self._options["group"] is None:
            self._enter()
        return self._job is not before

    def plan(self, name: str, sources: Sequence[Source], present: Sequence[int]) -> Any:
        """Returns a `Keyed` if all ranks can use the handler, else a `GradientRounds`."""
        from herring.jax.calls import implementation

        way, group = f"{name}.way", self._options["group"]
        with called("allgather", way, group):
            able = (
                implementation() == "ffi"
                and not self._options["wire_dtype"]
                and not self._options["buffer_bytes"]
                and not any(source.dtype.startswith("complex") for source in sources)
            )
        if not all(allgather_plain(able, name=way, group=group)):
            return super().plan(name, sources, present)
        used = sorted(agree(sources, present, name=name, group=group))
        return Keyed(name, sources, used)

    def run(self, rounds: Any, present: dict[int, Any], variables: Sequence[Any]) -> Sequence[Any]:
        """Runs one round."""
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
        call = CallOptions(keyed.name, group=self._options["group"])
        return reduce_leaves(leaves, call, op=self._options["op"], refusal=refusal)

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
