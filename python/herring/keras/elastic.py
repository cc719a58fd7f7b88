"""The state of elastic training with Keras, and callbacks that keep it up to date in `fit`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from herring.arrays.arguments import count_of
from herring.elastic.state import Part
from herring.elastic.state import State as _State
from herring.errors import InvalidArgumentError
from herring.keras.kept import kept_variables


def require_backend(what: str) -> None:
    """Raises InvalidArgumentError unless Keras runs on TensorFlow or PyTorch."""
    if (backend := keras.backend.backend()) not in ("tensorflow", "torch"):
        raise InvalidArgumentError(
            f"{what}: elastic training with Keras needs KERAS_BACKEND=tensorflow or torch, and "
            f"this is {backend!r}; use herring.elastic.State with arrays of JAX, or Horovod's API: "
            "herring.horovod.keras.elastic.KerasState"
        )


def built(optimizer: Any, models: Sequence[Any]) -> Any:
    """Returns an optimizer, which has its variables afterwards."""
    if not optimizer.built:
        if len(models) != 1:
            raise InvalidArgumentError(
                f"optimizer {optimizer.name!r} has no variables yet, and there is not one model "
                "that it is for: call optimizer.build(model.trainable_variables)"
            )
        optimizer.build(models[0].trainable_variables)
    return optimizer


def variables_of_model(model: Any) -> list[Any]:
    """Returns the variables of a model, without the seeds of random layers."""
    if not model.built:
        raise InvalidArgumentError(
            f"model {model.name!r} has no variables yet; give it an input shape, or call it once"
        )
    return list(model.weights)


class _Kept(Part):
    """A model, an optimizer or variables."""

    def __init__(self, variables: Callable[[], Iterable[Any]]) -> None:
        self.variables = kept_variables(variables, [])

    def send(self, root: int, name: str) -> None:
        self.variables.send(root, name)


class State(_State):
    """What training with Keras needs to go on after workers have gone or come.

        state = herring.keras.State(model=model, optimizer=optimizer, epoch=0, batch=0)

    A step is what lies between two commits. `commit` keeps a copy of all values. If a worker is
    lost, the others return to their last commit, and all get the values of the rank with the most
    commits. Models, optimizers and variables are sent as arrays, and only if a worker lacks them.
    A model's own optimizer belongs to it. The seeds of random layers are not part of the state. See
    `herring.elastic.State` for other values.
    """

    def __init__(self, **values: Any) -> None:
        """Makes a state of these values.

        Args:
          **values: built models, optimizers, lists of variables, and others by name.

        Raises:
          InvalidArgumentError: Keras runs on JAX, a model has no variables yet, or a
            name cannot be used.
        """
        require_backend("herring.keras.State")
        own = self.__dict__
        own["_models"] = [one for one in values.values() if isinstance(one, keras.Model)]
        own["_optimizers"] = [one for one in values.values() if _is_optimizer(one)]
        own["_saved"] = None
        super().__init__(**values)
        for model in self._models:
            variables_of_model(model)

    def _part_of(self, name: str, value: Any) -> Part | None:
        if isinstance(value, keras.Model):
            return _Kept(lambda: self._variables_of(value))
        if _is_optimizer(value):
            return _Kept(lambda: built(value, self._models).variables)
        if _is_variable(value):
            return _Kept(lambda: [value])
        if isinstance(value, (list, tuple)) and value and all(map(_is_variable, value)):
            return _Kept(lambda: value)
        return super()._part_of(name, value)

    def _variables_of(self, model: Any) -> list[Any]:
        variables = variables_of_model(model)
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and not any(optimizer is one for one in self._optimizers):
            variables += built(optimizer, [model]).variables
        return variables

    def commit(self) -> None:
        """Says that a step is complete, and keeps its values. Workers that have come join here.

        Call it equally often on all ranks, after each step or after each few steps. What follows
        the commit is not run when workers join: the training function is called again.
        """
        self._save()
        super().commit()

    def _begin(self) -> None:
        self._restore()
        super()._begin()
        self._save()

    def _save(self) -> None:
        notes = {}
        for name, value in self._values.items():
            part = self._parts.get(name)
            if isinstance(part, _Kept):
                part.variables.save()
            else:
                notes[name] = copy.deepcopy(value if part is None else part.note())
        self.__dict__["_saved"] = notes

    def _restore(self) -> None:
        """Returns to the last commit, if there is one."""
        if self._saved is None:
            return
        for part in self._parts.values():
            if isinstance(part, _Kept):
                part.variables.restore()
        for name, value in copy.deepcopy(self._saved).items():
            if name in self._parts:
                self._parts[name].take(value)
            else:
                self._values[name] = value


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, keras.optimizers.Optimizer)


def _is_variable(value: Any) -> bool:
    if isinstance(value, keras.Variable):
        return True
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return isinstance(value, tf.Variable)


class CommitStateCallback(keras.callbacks.Callback):
    """Commits a state after each few batches of `fit`, and at the end of each epoch.

    Name it last: callbacks after it do not hear of a batch after which workers join.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        """Creates the callback.

        Args:
          state: a state with a method `commit`.
          batches_per_commit: the number of batches between two commits, the same on all ranks.

        Raises:
          InvalidArgumentError: `batches_per_commit` is less than 1.
        """
        super().__init__()
        self.state = state
        self.batches_per_commit = count_of(batches_per_commit, "batches_per_commit", 1)
        self._since = 0  # batches since the last commit
        self._last = -1  # the last batch of this epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Counts from 0, because workers that have come do so."""
        self._since, self._last = 0, -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits if it is time, and if the epoch does not end here."""
        ends = self.model.stop_training or batch + 1 == (self.params or {}).get("steps")
        self._since += batch - self._last
        self._last = batch
        if self._since >= self.batches_per_commit and not ends:
            self._commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        self._last = -1
        self._commit()

    def _commit(self) -> None:
        self._since = 0
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps ``state.batch``, the number of batches of the present epoch that have been trained.

    If the number of batches in an epoch is known (`steps_per_epoch`, or data with a length), an
    epoch that `fit` begins with ``state.batch > 0`` has so many batches less. Give `fit` the number
    of a whole epoch.
    """

    def __init__(self, state: Any) -> None:
        """Creates the callback.

        Args:
          state: a state with the value `batch`.
        """
        super().__init__()
        self.state = state
        self._before = 0  # batches of this epoch in earlier calls of fit
        self._ends = object()  # a value of stop_training that ends the epoch only

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes how many batches the epoch has had."""
        self._before = self.state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the batch, and ends the epoch with its last one."""
        self.state.batch = self._before + batch + 1
        steps = (self.params or {}).get("steps")
        if self._before and steps and self.state.batch >= steps and not self.model.stop_training:
            self.model.stop_training = self._ends

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts anew, and lets the next epoch begin."""
        self.state.batch = 0
        if self.model.stop_training is self._ends:
            self.model.stop_training = False


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps ``state.epoch``, the number of epochs that have been trained.

    `fit` may count its epochs from 0 (``epochs=90 - state.epoch``) or from there
    (``initial_epoch=state.epoch, epochs=90``).
    """

    def __init__(self, state: Any) -> None:
        """Creates the callback.

        Args:
          state: a state with the value `epoch`.
        """
        super().__init__()
        self.state = state

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts the epoch."""
        self.state.epoch += 1
