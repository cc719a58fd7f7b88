"""Variables of the state of elastic training with Keras, with a copy to which training returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

import herring


def kept_variables(variables: Callable[[], Iterable[Any]], models: Sequence[Any]) -> Any:
    """Returns an object that keeps, restores and sends variables of Keras, on its backend."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from herring.tensorflow.kept import KeptVariables

        return KeptVariables(variables)
    return _OfTorch(variables) if backend == "torch" else _OfJax(variables, models)


def forget_program(model: Any) -> None:
    """Lets JAX trace the training step of a model anew.

    A traced step has what ranks have agreed on in its generation of an elastic job. JAX would take
    it from its cache, because the model's method is the same.
    """
    import jax

    model.train_function = None
    jax.clear_caches()


class _Kept:
    """Variables, and the copy of them that a commit has made."""

    def __init__(self, variables: Callable[[], Iterable[Any]]) -> None:
        self._variables = variables
        self._saved: list[tuple[Any, Any]] = []

    def save(self) -> None:
        """Keeps a copy."""
        self._saved = [(one, self._copy_of(one)) for one in self._variables()]

    def restore(self) -> None:
        """Returns to the copy, if there is one."""
        for variable, value in self._saved:
            self._set(variable, value)

    def send(self, root: int, name: str) -> None:
        """Gives all ranks the values of rank `root` (collective)."""
        raise NotImplementedError

    def _copy_of(self, variable: Any) -> Any:
        raise NotImplementedError

    def _set(self, variable: Any, value: Any) -> None:
        variable.assign(value)


class _OfTorch(_Kept):
    def _copy_of(self, variable: Any) -> Any:
        return variable.value.detach().clone()

    def send(self, root: int, name: str) -> None:
        from herring.torch.state import broadcast_tensors

        broadcast_tensors([one.value.detach() for one in self._variables()], root, name=name)


class _OfJax(_Kept):
    """Variables of JAX. While `fit` trains a model, they are empty, and their values elsewhere."""

    def __init__(self, variables: Callable[[], Iterable[Any]], models: Sequence[Any]) -> None:
        super().__init__(variables)
        self._models = models

    def save(self) -> None:
        for model in self._models:
            model.jax_state_sync()
        super().save()

    def restore(self) -> None:
        super().restore()
        for model in self._models:
            model._jax_state_synced = True  # the values elsewhere are those of a step that failed

    def _copy_of(self, variable: Any) -> Any:
        # A step may give the memory of an array to its results, so that the copy has its own.
        return np.array(variable.value)

    def _set(self, variable: Any, value: Any) -> None:
        import jax.numpy as jnp

        variable.assign(jnp.array(value, copy=True))

    def send(self, root: int, name: str) -> None:
        for index, one in enumerate(self._variables()):
            value = np.array(one.value, order="C")
            herring.broadcast(value.reshape(-1).view(np.uint8), root, name=f"{name}.{index}")
            if herring.rank() != root:
                self._set(one, value)
