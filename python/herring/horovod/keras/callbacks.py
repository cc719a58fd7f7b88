"""Horovod's callbacks for Keras 3, on those of herring.keras."""

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
    """Gives all ranks the model's and the optimizer's variables of one, before the first step.

    A model without an input shape gets them after the first batch.
    """

    def __init__(
        self,
        root_rank: int = 0,
        device: str = "",
        local_variables: Any = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Is collective when training begins.

        Args:
          root_rank: whose values all get; a rank of the job.
          device: no meaning.
          local_variables: None; local ones are broadcast too.
          process_set: who takes part.

        Raises:
          InvalidArgumentError: no such rank in the process set, or local variables are given.
        """
        if local_variables:
            raise InvalidArgumentError(
                f"local_variables has {len(local_variables)} variables; it must be None: broadcast "
                "the others with herring.tensorflow.broadcast_variables(variables), without this "
                "callback"
            )
        group = group_of(process_set)
        super().__init__(root_in(process_set, root_rank), group=group)


class MetricAverageCallback(plain.MetricAverageCallback):
    """Averages metrics over all ranks at the end of each epoch, each rank with the same weight.

    Those that come after it in the list (checkpoints, early stopping, schedules) see averages.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        """Is collective at the end of each epoch.

        Args:
          device: no meaning.
          process_set: who takes part.

        Raises:
          InvalidArgumentError: the process set is not registered, or without this rank.
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
        """Saves nothing yet.

        Args:
          monitor: the metric that says which model is best.
          verbose: as of ModelCheckpoint.
          mode: "auto", "min" or "max".
          save_freq: as of ModelCheckpoint.
          filepath: where to, ending with .keras. In Horovod the Spark estimator sets it.

        Raises:
          InvalidArgumentError: there is no `filepath`.
        """
        if filepath is None:
            raise InvalidArgumentError(
                "BestModelCheckpoint: filepath is None; give a path that ends with .keras"
            )
        super().__init__(
            filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            mode=mode,
            save_freq=save_freq,
        )
