"""Horovod's callbacks for Keras 3, derived from those of herring.keras."""

from __future__ import annotations

from typing import Any

import keras

from herring.errors import InvalidArgumentError
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of, root_in
from herring.keras import callbacks as plain
from herring.keras.callbacks import LearningRateScheduleCallback, LearningRateWarmupCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(plain.BroadcastGlobalVariablesCallback):
    """Copies the variables of a model and its optimizer from one rank to all ranks.

    The variables are copied when training begins, or after the first batch if the model is not
    built before.
    """

    def __init__(
        self,
        root_rank: int = 0,
        device: str = "",
        local_variables: Any = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Creates the callback; its broadcast is collective.

        Args:
          local_variables: must be None; local variables are broadcast, too.

        Raises:
          InvalidArgumentError: `root_rank` is not in the process set, or local variables are given.
        """
        if local_variables:
            raise InvalidArgumentError(
                f"local_variables has {len(local_variables)} variables; it must be None: broadcast "
                "the other variables with herring.tensorflow.broadcast_variables(variables) and "
                "leave this callback out"
            )
        group = group_of(process_set)
        super().__init__(root_in(process_set, root_rank), group=group)


class MetricAverageCallback(plain.MetricAverageCallback):
    """Averages metrics over all ranks at the end of each epoch; every rank has the same weight.

    Callbacks after it in the list (checkpoints, early stopping, schedules) see the averages.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        """Creates the callback, which is collective at the end of each epoch.

        Raises:
          InvalidArgumentError: the process set is not registered or does not contain this rank.
        """
        super().__init__(group=group_of(process_set))


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """A keras.callbacks.ModelCheckpoint that keeps the best model only."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: Any = None,
    ) -> None:
        """Creates the callback.

        Args:
          monitor: name of the metric that determines which model is best.
          verbose: 1 makes ModelCheckpoint print a line for each saved model; 0 is silent.
          mode: "auto", "min" or "max".
          save_freq: "epoch", or a number of batches between two checks.
          filepath: path of the saved model, ending with .keras. In Horovod, the Spark estimator
            sets the path.

        Raises:
          InvalidArgumentError: `filepath` is None.
        """
        if filepath is None:
            raise InvalidArgumentError(
                "BestModelCheckpoint: filepath is None; it must be a path that ends with .keras"
            )
        super().__init__(
            filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            mode=mode,
            save_freq=save_freq,
        )
