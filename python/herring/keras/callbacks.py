"""Keras callbacks for data-parallel training, with the names that Horovod gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import herring
from herring.arrays.arguments import count_of
from herring.arrays.calls import name_of_next
from herring.arrays.groups import Group, scope_of
from herring.arrays.objects import allgather_plain, check_same
from herring.arrays.runtime import job
from herring.arrays.seconds import StepMeter
from herring.arrays.values import broadcast_values
from herring.errors import InvalidArgumentError
from herring.keras.optimizer import is_distributed, require_flushed, rounds_of
from herring.partial.lists import counts_of, means_since

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "FlushCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "RoundStatisticsCallback",
    "StepSecondsCallback",
    "broadcast_model",
    "on_root",
]


def broadcast_model(
    model: Any, root: int = 0, *, name: str | None = None, group: Group | None = None
) -> None:
    """Copies the variables of a model and its optimizer from rank `root` to all ranks (collective).

    The seeds of random layers, such as dropout, are not copied: each rank keeps its own.

    Args:
      model: a built keras.Model, compiled or not. Its optimizer is built if necessary.
      root: the rank whose values are copied; its index in the group if `group` is given.
      name: name of the operation, the same on all ranks; None numbers the calls.

    Raises:
      InvalidArgumentError: the model has no variables yet.
      MismatchError: the models differ between ranks.
      PeerLostError: a worker or server died or left.
      TimeoutError: a rank did not make the call in time.
    """
    if not model.built:
        raise InvalidArgumentError(
            f"model {model.name!r} has no variables yet; give it an input shape, or call it once"
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    # `model.weights` does not contain the seeds.
    variables = list(model.weights) + ([] if optimizer is None else list(optimizer.variables))
    values = [_numpy(variable) for variable in variables]
    name = name or name_of_next("broadcast_model", group)
    for variable, value in zip(variables, broadcast_values(values, root, name=name, group=group)):
        variable.assign(value)


def on_root(make: Callable[[], Any], root: int = 0, *, group: Group | None = None) -> list[Any]:
    """Returns a list with one callback on rank `root`, and an empty list on the other ranks.

        callbacks=[..., *herring.on_root(lambda: keras.callbacks.ModelCheckpoint("best.keras"))]

    Args:
      make: creates the callback; called on the root only.
      root: the rank that gets the callback; its index in the group if `group` is given.
      group: the group in which `root` is an index; None means all ranks.

    Returns:
      ``[make()]`` on the root, ``[]`` elsewhere.
    """
    return [make()] if scope_of(group).rank == root else []


def _numpy(variable: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(variable))


def _sync(model: Any) -> None:
    """Writes current values back to the model's variables: on JAX, `fit` keeps them elsewhere."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Copies one rank's variables to all ranks when training begins.

    All ranks then start from the same values, for example after one of them loaded a checkpoint. If
    the model is not built when training begins, the variables are copied after the first batch.
    """

    def __init__(self, root_rank: int = 0, *, group: Group | None = None) -> None:
        """Creates the callback; its broadcast is collective.

        Args:
          root_rank: the rank whose values are copied; its index in the group if `group` is given.
        """
        super().__init__()
        self._root = root_rank
        self._group = group
        self._name = name_of_next("broadcast_callback", group)
        self._done = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts if the model is built on all ranks.

        Raises:
          InvalidArgumentError: TensorFlow would compile the averaging optimizer with XLA.
        """
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
        built = allgather_plain(bool(model.built), name=f"{self._name}.built", group=self._group)
        self._done = all(built)
        require_flushed(model, "a broadcast of the variables")
        if not self._done and rounds_of(model.optimizer) is not None:
            raise InvalidArgumentError(
                f"model {model.name!r} has no variables yet, and with a partial sync they cannot "
                "be broadcast after the first batch; give it an input shape, or call it once"
            )
        if self._done:
            broadcast_model(model, self._root, name=self._name, group=self._group)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts after the first batch if the model was not built before."""
        if self._done:
            return
        self._done = True
        _sync(self.model)
        broadcast_model(self.model, self._root, name=self._name, group=self._group)


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages metrics over all ranks at the end of each epoch; every rank has the same weight.

    Callbacks after it in the list (checkpoints, early stopping, schedules) see the averages.
    """

    def __init__(self, *, group: Group | None = None) -> None:
        """Creates the callback, which is collective at the end of each epoch."""
        super().__init__()
        self._group = group
        self._name = name_of_next("metric_callback", group)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replaces the scalar values in `logs` with their averages."""
        if logs is None or scope_of(self._group).size == 1:
            return
        require_flushed(self.model, "an average of metrics")
        keys = sorted(key for key, value in logs.items() if np.ndim(value) == 0)
        keys = [key for key in keys if isinstance(logs[key], (int, float, np.number))]
        check_same("metrics", keys, name=f"{self._name}.keys", group=self._group)
        values = np.array([float(logs[key]) for key in keys], np.float64)
        herring.allreduce(values, name=self._name, group=self._group)
        logs.update(zip(keys, values.tolist()))


class FlushCallback(keras.callbacks.Callback):
    """Flushes the optimizer's partial rounds, so that variables are equal on all ranks.

    Put it first in the list. Callbacks after it see equal variables on all ranks at the end of an
    epoch, and may be collective. With sync="full" it does nothing.
    """

    def __init__(self, epochs: int | None = 1) -> None:
        """Creates the callback, which is collective.

        Args:
          epochs: the number of epochs after which it flushes; None means only when training ends.
            It always flushes then.

        Raises:
          InvalidArgumentError: `epochs` is less than 1.
        """
        super().__init__()
        self._epochs = None if epochs is None else count_of(epochs, "epochs", 1)
        self._due = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes that there will be rounds."""
        self._due = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Flushes if this epoch is one of them, or the last."""
        last = epoch + 1 == self.params.get("epochs") or self.model.stop_training
        if last or (self._epochs is not None and (epoch + 1) % self._epochs == 0):
            self._flush()

    def on_train_end(self, logs: Any = None) -> None:
        """Flushes if a callback after this one has ended training."""
        self._flush()

    def _flush(self) -> None:
        if self._due and rounds_of(self.model.optimizer) is not None:
            _sync(self.model)
            self.model.optimizer.flush()
        self._due = False


class RoundStatisticsCallback(keras.callbacks.Callback):
    """Adds to the metrics of an epoch what its partial rounds were like.

    ``herring/rounds`` is their number. ``herring/contributors`` is the mean number of workers in a
    round, and ``herring/staleness`` the mean number of rounds by which gradients were late. Put it
    after `FlushCallback`. With sync="full" it adds nothing.
    """

    def __init__(self) -> None:
        """Creates the callback; nothing is collective."""
        super().__init__()
        self._before: Any = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins to count."""
        if rounds_of(self.model.optimizer) is not None:
            self._before = counts_of(self.model.optimizer.statistics)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the values to the metrics of the epoch."""
        if logs is not None and self._before is not None:
            logs.update(means_since(self.model.optimizer.statistics, self._before))


class StepSecondsCallback(keras.callbacks.Callback):
    """Adds where the time of a training step goes to the metrics.

    Callbacks after it in the list write the values to TensorBoard, W&B or a file. They are means of
    a step on this rank: ``herring/step_seconds`` and ``herring/exposed_seconds``, for which the
    program waited for results.
    """

    def __init__(self, every: int | None = None, *, details: bool = False) -> None:
        """Creates the callback; nothing is collective.

        Args:
          every: After so many batches the metrics of a batch have the values of these batches; None
            means that only the metrics of an epoch have values.
          details: Whether to add ``herring/compute_seconds``, ``herring/node_stage_seconds``,
            ``herring/push_seconds``, ``herring/pull_seconds``, ``herring/bytes_sent`` and
            ``herring/bytes_received``.

        Raises:
          InvalidArgumentError: `every` is less than 1.
        """
        super().__init__()
        if every is not None and every < 1:
            raise InvalidArgumentError(f"every is {every}; it must be at least 1, or None")
        self._every = every
        self._details = details
        self._of_batches, self._of_epoch = StepMeter(), StepMeter()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins to measure; what happens between epochs does not count."""
        self._of_batches, self._of_epoch = StepMeter(), StepMeter()
        self._count()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Adds the values to the metrics of the batch if they are asked for there."""
        self._count()
        if self._every is not None and self._of_batches.steps >= self._every and logs is not None:
            self._add(self._of_batches, logs)

    def on_test_begin(self, logs: Any = None) -> None:
        """Leaves out validation."""
        self._of_batches.pause()
        self._of_epoch.pause()

    def on_test_end(self, logs: Any = None) -> None:
        """Goes on measuring."""
        self._of_batches.resume()
        self._of_epoch.resume()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the values to the metrics of the epoch."""
        if logs is not None:
            self._add(self._of_epoch, logs)

    def _count(self) -> None:
        steps = int(getattr(self.model, "steps_per_execution", None) or 1)
        self._of_epoch.step(job(), steps)
        if self._every is not None:
            self._of_batches.step(job(), steps)

    def _add(self, meter: StepMeter, logs: Any) -> None:
        few = ("herring/step_seconds", "herring/exposed_seconds")
        values = meter.read()
        logs.update(values if self._details else {k: values[k] for k in few if k in values})


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Multiplies the initial learning rate by a factor during a range of epochs."""

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
        """Creates the callback.

        Args:
          initial_lr: the learning rate that is multiplied.
          multiplier: the factor, or a function that computes it from the epoch. The epoch has a
            fractional part unless `staircase` is true.
          start_epoch: the first epoch, counted from 0, in which the callback is active.
          end_epoch: the first epoch in which the callback is no longer active; None means that it
            stays active.
          staircase: True sets the learning rate once per epoch, False before each batch.
          momentum_correction: whether to scale the momentum of SGD by the change of the learning
            rate for one batch (Goyal et al. 2017, section 3). Has an effect with run_eagerly only,
            because compiled functions contain the momentum as a constant.
          steps_per_epoch: batches in an epoch; None takes the number from `fit`.

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
        """Remembers the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the learning rate if this epoch is in the range."""
        begun = self._epoch >= self.start_epoch
        if not begun or (self.end_epoch is not None and self._epoch >= self.end_epoch):
            return
        if self.staircase and batch != 0:
            return
        self._set(self._epoch if self.staircase else self._epoch + batch / self._steps())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Restores the momentum that was scaled for this batch."""
        if self._momentum is not None:
            self.model.optimizer.momentum = self._momentum
            self._momentum = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the learning rate to the metrics as ``lr``."""
        if logs is not None:
            logs["lr"] = float(_numpy(self.model.optimizer.learning_rate))

    def _steps(self) -> int:
        steps = self.steps_per_epoch or self.params.get("steps")
        if not steps:
            raise InvalidArgumentError(
                "the number of batches in an epoch is unknown; pass steps_per_epoch"
            )
        return int(steps)

    def _set(self, epoch: float) -> None:
        if not self.staircase and rounds_of(self.model.optimizer) is not None:
            raise InvalidArgumentError(
                f"{type(self).__name__} changes the learning rate by batches, of which ranks make "
                "different numbers in a round; with a partial sync give the optimizer a schedule "
                "(keras.optimizers.schedules), which counts rounds"
            )
        require_flushed(self.model, "a change of the learning rate")
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

    `initial_lr` is the learning rate of the whole job. It is usually the learning rate for one
    worker, multiplied by the number of workers.
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
        """Creates the callback.

        Args:
          initial_lr: the learning rate after the warm-up.
          warmup_epochs: length of the warm-up in epochs.
          momentum_correction: whether to scale the momentum of SGD by the change of the learning
            rate for one batch. Has an effect with run_eagerly only.
          steps_per_epoch: batches in an epoch; None takes the number from `fit`.
          verbose: 1 makes rank 0 print a line when the warm-up is over.
          group: the group whose size divides the learning rate; None means all ranks.

        Raises:
          InvalidArgumentError: `initial_lr` or `warmup_epochs` is not positive.
        """
        if not warmup_epochs > 0:
            raise InvalidArgumentError(f"warmup_epochs is {warmup_epochs}; it must be positive")
        scope_of(group)

        def multiplier(epoch: float) -> float:
            size = scope_of(group).size  # of the present generation of an elastic job
            epoch += 1.0 / self._steps()  # The last batch then has the full learning rate.
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch
        )
        self._verbose = verbose and scope_of(group).rank == 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the learning rate to the metrics, and prints a line after the warm-up."""
        super().on_epoch_end(epoch, logs)
        if self._verbose and epoch == self.end_epoch - 1:
            rate = float(_numpy(self.model.optimizer.learning_rate))
            print(f"Epoch {epoch + 1}: the learning rate is {rate:.6g} after the warm-up.")
