"""A gluon.Trainer, and an optimizer for modules, that average gradients over all ranks."""

from __future__ import annotations

import warnings
from typing import Any

import mxnet as mx

import herring
import herring.mxnet as plain
from herring.arrays.calls import name_of_next
from herring.errors import InvalidArgumentError
from herring.horovod.common import rounds
from herring.horovod.common.exceptions import NotSupportedError, internal_errors
from herring.horovod.common.operators import Average, check_gradient_options
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of
from herring.horovod.mxnet import mpi_ops
from herring.horovod.mxnet.compression import Compression

__all__ = ["DistributedOptimizer", "DistributedTrainer"]


class DistributedOptimizer(mx.optimizer.Optimizer):
    """An optimizer that averages each gradient over all ranks before it applies the gradient.

    Use it with `mx.mod.Module`. With Gluon, `DistributedTrainer` is faster because it has one plan
    for all gradients.

    Args:
      optimizer: an mx.optimizer.Optimizer.
      gradient_predivide_factor: has no effect, because sums cannot overflow before division.
      num_groups: ignored, because the gradients of a call are one operation anyway.
      process_set: the ranks that take part; other ranks step without communication.

    Raises:
      InvalidArgumentError: `optimizer` is not an optimizer, or is a DistributedOptimizer already.
      ShutdownError: `init` was not called.
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if not isinstance(optimizer, mx.optimizer.Optimizer) or isinstance(
            optimizer, DistributedOptimizer
        ):
            raise InvalidArgumentError(
                f"optimizer is {optimizer!r}; it must be an mx.optimizer.Optimizer that is not a "
                "DistributedOptimizer yet"
            )
        check_gradient_options(Average, gradient_predivide_factor)
        self._optimizer = optimizer
        self._process_set = process_set
        self._name = ""
        herring.rank()  # Raises an error if this process is not in a job.
        if process_set.included() is not False:
            self._name = name_of_next("DistributedOptimizer", group_of(process_set))

    def __getattr__(self, item: str) -> Any:
        if item == "_optimizer":
            raise AttributeError(item)
        return getattr(self._optimizer, item)

    def create_state(self, index: Any, weight: Any) -> Any:
        """Calls `create_state` of the wrapped optimizer."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """Calls `create_state_multi_precision` of the wrapped optimizer."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Averages gradients in place and applies them (collective)."""
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Averages gradients, then updates weights that may have a float32 copy (collective)."""
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Sets the learning rate of the wrapped optimizer."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: dict[Any, float]) -> None:
        """Sets the learning-rate multipliers of the wrapped optimizer."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: dict[Any, float]) -> None:
        """Sets the weight-decay multipliers of the wrapped optimizer."""
        self._optimizer.set_wd_mult(args_wd_mult)

    def _average(self, index: Any, grad: Any) -> None:
        if not self._name or self._process_set.size() == 1:
            return
        several = isinstance(index, (tuple, list))
        first = index[0] if several else index
        mpi_ops.grouped_allreduce_(
            list(grad) if several else [grad],
            name=f"{self._name}.{first}",
            process_set=self._process_set,
        )


class DistributedTrainer(plain.DistributedTrainer):
    """A gluon.Trainer that averages gradients over all ranks before it applies them.

    Pass the batch size of one rank to ``step(batch_size)``, as with Horovod.
    """

    def __init__(
        self,
        params: Any,
        optimizer: str | mx.optimizer.Optimizer,
        optimizer_params: dict[str, Any] | None = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Creates the trainer without communicating.

        `broadcast_parameters` gives all ranks the same initial parameters.

        Args:
          params: the parameters to train, each on one context; the same on all ranks.
          optimizer: an optimizer or its name, for gluon.Trainer.
          optimizer_params: keyword arguments of the optimizer, for gluon.Trainer.
          compression: `Compression.none` or `Compression.fp16`. With fp16, float32 gradients are
            sent between nodes in 16 bits and added in 32.
          gradient_predivide_factor: has no effect, because sums cannot overflow before division.
          prefix: prefix of the operation names. None numbers the trainers in the order of their
            creation, which must be the same on all ranks.
          num_groups: ignored, because gradients share fusion buffers anyway.
          process_set: the ranks that take part; other ranks step without communication.

        Raises:
          InvalidArgumentError: parameters are on several contexts, or gradients are sparse.
          NotSupportedError: `compression` is a compressor of your own.
          ShutdownError: `init` was not called.
        """
        if compression not in (Compression.none, Compression.fp16):
            raise NotSupportedError(
                f"compression={compression!r}: use hvd.Compression.none or hvd.Compression.fp16"
            )
        check_gradient_options(Average, gradient_predivide_factor)
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer averages gradients itself; it uses the optimizer that the "
                "DistributedOptimizer wraps",
                stacklevel=2,
            )
            optimizer = optimizer._optimizer
        herring.rank()  # Raises an error if this process is not in a job.
        member = process_set.included() is not False
        group = group_of(process_set) if member else None
        name = "horovod.trainer.of_others"  # Does not advance the numbers of the set's trainers.
        if member:
            name = f"horovod.trainer.{prefix}" if prefix else name_of_next("horovod.trainer", group)
        super().__init__(
            params,
            optimizer,
            optimizer_params,
            wire_dtype="float16" if compression is Compression.fp16 else None,
            name=name,
            group=group,
        )
        self._herring_options["divide_by_all"] = rounds.joined_as_zeros()
        if not member:
            self._herring_size = 1

    def _allreduce_grads(self) -> None:
        with internal_errors():
            super()._allreduce_grads()
        rounds.reducers.update(self._herring_rounds.values())
