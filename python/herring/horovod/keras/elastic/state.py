"""States of elastic training with Keras, as in Horovod."""

from __future__ import annotations

from typing import Any

import keras

from herring.errors import InvalidArgumentError
from herring.horovod.common.basics import rank
from herring.horovod.common.elastic import ObjectState, root
from herring.horovod.common.exceptions import internal_errors
from herring.horovod.common.objects import broadcast_object
from herring.horovod.keras.accumulation import forget_passes
from herring.keras.elastic import built, variables_of_model
from herring.keras.kept import forget_program, kept_variables
from herring.keras.optimizer import begins_anew


class TensorFlowKerasState(ObjectState):
    """A state of a model, its optimizer and other objects, each an attribute.

    The variables of the model and the optimizer travel as arrays, without the seeds of random
    layers. Everything else travels as an object.

    Args:
      model: a built keras.Model.
      optimizer: its optimizer, or None for the one that it is compiled with.
      backend: ignored.
      **kwargs: further values by name.

    Raises:
      InvalidArgumentError: the model has no variables yet, or there is no optimizer.
      NotSupportedError: TensorFlow runs sessions.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        if keras.backend.backend() == "tensorflow":
            from herring.horovod.tensorflow.elastic.state import require_eager

            require_eager(type(self).__name__)
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        self.backend = backend
        if self.optimizer is None:
            raise InvalidArgumentError(
                f"{type(self).__name__}: model {model.name!r} is not compiled, so give its "
                "optimizer as optimizer="
            )
        self._variables = kept_variables(self._all, [model])
        self._variables.save()
        super().__init__(broadcast_object, rank, **kwargs)

    def _all(self) -> list[Any]:
        return variables_of_model(self.model) + built(self.optimizer, [self.model]).variables

    def save(self) -> None:
        """Keeps a copy of all values."""
        self._variables.save()
        super().save()

    def restore(self) -> None:
        """Returns to the values that were saved last."""
        self._variables.restore()
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the values of the rank that is furthest, and saves them (collective)."""
        forget_passes(self.optimizer)
        if begins_anew(self.optimizer):
            forget_program(self.model)
        with internal_errors():
            self._variables.send(root(), "horovod.elastic.variables")
        super().sync()


class KerasState(TensorFlowKerasState):
    """A state of a model, its optimizer and other objects, each an attribute.

    Args:
      model: a built keras.Model.
      optimizer: its optimizer, or None for the one that it is compiled with.
      **kwargs: further values by name.

    Raises:
      InvalidArgumentError: the model has no variables yet, or there is no optimizer.
      NotSupportedError: TensorFlow runs sessions.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, None, **kwargs)
