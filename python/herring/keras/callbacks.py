"""Callbacks of Keras for data-parallel training; names are Horovod's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import herring
from herring.arrays.calls import name_of_next
from herring.arrays.collectives import check_same
from herring.arrays.groups import Group, scope_of
from herring.arrays.values import broadcast_values
from herring.errors import InvalidArgumentError
from herring.keras.optimizer import is_distributed

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "broadcast_model",
    "on_root",
]


def broadcast_model(
    model: Any, root: int = 0, *, name: str | None = None, group: Group | None = None
) -> None:
    """Overwrites a model's variables and its optimizer's with those of rank `root` (collective).

    Seeds of random layers, such as dropout, stay each rank's own.

    Args:
      model: a built keras.Model, compiled or not; an optimizer that is not built yet is.
      root: the rank whose values all get, inside the group if there is one.
      name: identifies the operation; None: numbered.
      group: those who take part; None: all ranks.

    Raises:
      InvalidArgumentError: the model has no variables yet.
      MismatchError: the models differ between ranks.
      PeerLostError, TimeoutError: as `herring.broadcast`.
    """
    if not model.built:
        raise InvalidArgumentError(
            f"model {model.name!r} has no variables yet; give it an input shape, or call it once"
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    # `weights` leaves out the seeds.
    variables = list(model.weights) + ([] if optimizer is None else list(optimizer.variables))
    values = [_numpy(variable) for variable in variables]
    name = name or name_of_next("broadcast_model", group)
    for variable, value in zip(variables, broadcast_values(values, root, name=name, group=group)):
        variable.assign(value)


def on_root(make: Callable[[], Any], root: int = 0, *, group: Group | None = None) -> list[Any]:
    """A list with a callback on rank `root`, and an empty one on the others.

        callbacks=[..., *herring.on_root(lambda: keras.callbacks.ModelCheckpoint("best.keras"))]

    Args:
      make: makes the callback; called on the root only.
      root: a rank, inside the group if there is one.
      group: whose ranks are meant; None: all.
    """
    return [make()] if scope_of(group).rank == root else []


def _numpy(variable: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(variable))


def _sync(model: Any) -> None:
    """Has variables hold what they should: on JAX `fit` keeps their values elsewhere."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the variables of one when training begins, as after loading a checkpoint.

    A model that has no variables by then gets them after the first batch.
    """

    def __init__(self, root_rank: int = 0, *, group: Group | None = None) -> None:
        """Is collective when training begins.

        Args:
          root_rank: the rank whose values all get, inside the group if there is one.
          group: those who take part; None: all ranks.
        """
        super().__init__()
        self._root = root_rank
        self._group = group
        self._name = name_of_next("broadcast_callback", group)
        self._done = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts if the model is built on all ranks; looks for XLA."""
        model = self.model
        if (
            keras.backend.backend() == "tensorflow"
            and model.jit_compile
            and not model.run_eagerly
            and is_distributed(model.optimizer)
            and scope_of(self._group).size > 1
        ):
            from herring.tensorflow.xla import XLA_ADVICE

            raise InvalidArgumentError(f"jit_compile is True: {XLA_ADVICE}")
        built = herring.allgather_object(
            bool(model.built), name=f"{self._name}.built", group=self._group
        )
        self._done = all(built)
        if self._done:
            broadcast_model(model, self._root, name=self._name, group=self._group)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts after the first batch what was not there before."""
        if self._done:
            return
        self._done = True
        _sync(self.model)
        broadcast_model(self.model, self._root, name=self._name, group=self._group)


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages metrics over all ranks at the end of each epoch, each rank with the same weight.

    Those that come after it in the list (checkpoints, early stopping, schedules) see averages.
    """

    def __init__(self, *, group: Group | None = None) -> None:
        """Is collective at the end of each epoch.

        Args:
          group: those who take part; None: all ranks.
        """
        super().__init__()
        self._group = group
        self._name = name_of_next("metric_callback", group)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replaces the values in `logs`."""
        if logs is None or scope_of(self._group).size == 1:
            return
        keys = sorted(key for key, value in logs.items() if np.ndim(value) == 0)
        keys = [key for key in keys if isinstance(logs[key], (int, float, np.number))]
        check_same("metrics", keys, name=f"{self._name}.keys", group=self._group)
        values = np.array([float(logs[key]) for key in keys], np.float64)
        herring.allreduce(values, name=self._name, group=self._group)
        logs.update(zip(keys, values.tolist()))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to a multiple of the initial one, from one epoch to another."""

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Does nothing yet.

        Args:
          initial_lr: the learning rate that is multiplied.
          multiplier: a number, or a function of the epoch (with a fraction where not `staircase`).
          start_epoch: the first epoch in which it acts.
          end_epoch: the first epoch in which it no longer does; None: it goes on.
          staircase: it acts once per epoch; False: before each batch.
          momentum_correction: scale the momentum of SGD by the change while a batch is trained on
            (Goyal et al. 2017, section 3). Acts in run_eagerly only: compiled functions have the
            momentum as a constant.
          steps_per_epoch: batches in an epoch; None: what `fit` says.

        Raises:
          InvalidArgumentError: `initial_lr` is not positive.
        """
        super().__init__()
        if not initial_lr > 0:
            raise InvalidArgumentError(f"initial_lr is {initial_lr}; it must be positive")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self._multiplier = multiplier if callable(multiplier) else lambda _: multiplier
        self._epoch = 0
        self._momentum: float | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the learning rate."""
        begun = self._epoch >= self.start_epoch
        if not begun or (self.end_epoch is not None and self._epoch >= self.end_epoch):
            return
        if self.staircase and batch != 0:
            return
        self._set(self._epoch if self.staircase else self._epoch + batch / self._steps())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Restores the momentum."""
        if self._momentum is not None:
            self.model.optimizer.momentum = self._momentum
            self._momentum = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Shows the learning rate among the metrics."""
        if logs is not None:
            logs["lr"] = float(_numpy(self.model.optimizer.learning_rate))

    def _steps(self) -> int:
        steps = self.steps_per_epoch or self.params.get("steps")
        if not steps:
            raise InvalidArgumentError(
                "how many batches an epoch has is not known; pass steps_per_epoch"
            )
        return int(steps)

    def _set(self, epoch: float) -> None:
        _sync(self.model)
        optimizer = self.model.optimizer
        new = self.initial_lr * self._multiplier(epoch)
        old = float(_numpy(optimizer.learning_rate))
        optimizer.learning_rate = new
        momentum = getattr(optimizer, "momentum", None)
        if (
            self.momentum_correction
            and self.model.run_eagerly
            and isinstance(momentum, float)
            and momentum > 0
            and old > 0
        ):
            self._momentum = momentum
            optimizer.momentum = momentum * new / old


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr` / size to `initial_lr` (Goyal et al. 2017).

    `initial_lr` is that of the whole job: usually that of one worker times their number.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        *,
        group: Group | None = None,
    ) -> None:
        """Does nothing yet.

        Args:
          initial_lr: the learning rate after the warm-up.
          warmup_epochs: epochs that it takes.
          momentum_correction: as of `LearningRateScheduleCallback`.
          steps_per_epoch: batches in an epoch; None: what `fit` says.
          verbose: 1: rank 0 says when it is over.
          group: whose size counts; None: all ranks.

        Raises:
          InvalidArgumentError: `initial_lr` or `warmup_epochs` is not positive.
        """
        if not warmup_epochs > 0:
            raise InvalidArgumentError(f"warmup_epochs is {warmup_epochs}; it must be positive")
        size = scope_of(group).size

        def multiplier(epoch: float) -> float:
            epoch += 1.0 / self._steps()  # so that the last batch has the full one
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch
        )
        self._verbose = verbose and scope_of(group).rank == 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Says when the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if self._verbose and epoch == self.end_epoch - 1:
            rate = float(_numpy(self.model.optimizer.learning_rate))
            print(f"Epoch {epoch + 1}: the learning rate is {rate:.6g} after the warm-up.")
