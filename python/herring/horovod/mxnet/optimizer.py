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
    """An optimizer that averages each gradient over all ranks before it is applied.

    For `mx.mod.Module`; with Gluon `DistributedTrainer` is faster: one plan for all gradients.

    Args:
      optimizer: an mx.optimizer.Optimizer.
      gradient_predivide_factor: no meaning: sums cannot overflow before they are divided.
      num_groups: no meaning: gradients of a call are one operation anyway.
      process_set: who takes part; a rank that is not in it steps by itself.

    Raises:
      InvalidArgumentError: not an optimizer, or one of these already.
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
        herring.rank()  # a job is needed
        if process_set.included() is not False:
            self._name = name_of_next("DistributedOptimizer", group_of(process_set))

    def __getattr__(self, item: str) -> Any:
        if item == "_optimizer":
            raise AttributeError(item)
        return getattr(self._optimizer, item)

    def create_state(self, index: Any, weight: Any) -> Any:
        """As of the optimizer."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """As of the optimizer."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Averages gradients in place, and applies them (collective)."""
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """As `update`, with weights that have a copy in float32."""
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """As of the optimizer."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: dict[Any, float]) -> None:
        """As of the optimizer."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: dict[Any, float]) -> None:
        """As of the optimizer."""
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
    """A gluon.Trainer whose gradients are averages over all ranks when they are applied.

    ``step(batch_size)`` takes the batch size of this rank, as with Horovod.
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
        """Exchanges nothing yet; see `broadcast_parameters`.

        Args:
          params: as of gluon.Trainer, of one context each; alike on all ranks.
          optimizer: as of gluon.Trainer.
          optimizer_params: as of gluon.Trainer.
          compression: `Compression.none`, or `Compression.fp16`: float32 gradients travel between
            nodes in 16 bits and are added in 32.
          gradient_predivide_factor: no meaning: sums cannot overflow before they are divided.
          prefix: of the names of operations. None: trainers are numbered in the order in which
            they are made, which must be the same on all ranks.
          num_groups: no meaning: gradients share fusion buffers anyway.
          process_set: who takes part; a rank that is not in it steps by itself.

        Raises:
          InvalidArgumentError: several contexts, or sparse gradients.
          NotSupportedError: a compressor of the caller's own.
          ShutdownError: `init` was not called.
        """
        if compression not in (Compression.none, Compression.fp16):
            raise NotSupportedError(
                f"compression={compression!r}: use hvd.Compression.none or hvd.Compression.fp16"
            )
        check_gradient_options(Average, gradient_predivide_factor)
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer averages gradients itself, and takes the optimizer that the "
                "DistributedOptimizer wraps",
                stacklevel=2,
            )
            optimizer = optimizer._optimizer
        herring.rank()  # a job is needed
        member = process_set.included() is not False
        group = group_of(process_set) if member else None
        name = "horovod.trainer.of_others"  # not to be ahead of ranks that number their own
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
        if not member:
            self._herring_size = 1

    def _allreduce_grads(self) -> None:
        with internal_errors():
            super()._allreduce_grads()
        rounds.reducers.update(self._herring_rounds.values())
