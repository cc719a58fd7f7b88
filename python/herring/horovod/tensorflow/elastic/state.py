"""The state of elastic training with variables of TensorFlow, as in Horovod."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from herring.errors import InvalidArgumentError
from herring.horovod.common.basics import rank
from herring.horovod.common.elastic import ObjectState, root
from herring.horovod.common.exceptions import NotSupportedError, internal_errors
from herring.horovod.tensorflow.functions import broadcast_object
from herring.tensorflow.graphs import has_no_order
from herring.tensorflow.kept import KeptVariables


def require_eager(what: str) -> None:
    """Raises NotSupportedError if TensorFlow runs graphs of tf.compat.v1 in sessions."""
    if has_no_order():
        raise NotSupportedError(
            f"hvd.elastic.{what} does not support the sessions of TensorFlow 1: leave out "
            "tf.compat.v1.disable_eager_execution() and disable_v2_behavior()"
        )


class TensorFlowState(ObjectState):
    """A state of variables and other objects, each an attribute.

    Args:
      variables: tf.Variable or keras.Variable objects of any dtype but strings, in the same order
        on all ranks.
      **kwargs: further values by name.

    Raises:
      InvalidArgumentError: there are no variables.
      NotSupportedError: a session is given, or TensorFlow runs sessions; or `variables` is None,
        which means the global variables of TensorFlow 1.
    """

    def __init__(
        self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        require_eager("TensorFlowState")
        if session is not None:
            raise NotSupportedError(
                f"hvd.elastic.TensorFlowState: session is {session!r}; it must be None, because "
                "TensorFlow 2 has no sessions"
            )
        if variables is None:
            raise NotSupportedError(
                "hvd.elastic.TensorFlowState: variables is None, and TensorFlow 2 has no global "
                "variables; give a list, such as model.variables + optimizer.variables"
            )
        self.variables = list(variables)
        self.session = None
        if not self.variables:
            raise InvalidArgumentError("hvd.elastic.TensorFlowState: variables is empty")
        self._kept = KeptVariables(lambda: self.variables)
        self._kept.save()
        super().__init__(broadcast_object, rank, **kwargs)

    def save(self) -> None:
        """Keeps a copy of all values."""
        self._kept.save()
        super().save()

    def restore(self) -> None:
        """Returns to the values that were saved last."""
        self._kept.restore()
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the values of the rank that is furthest, and saves them (collective)."""
        with internal_errors():
            self._kept.send(root(), "horovod.elastic.variables")
        super().sync()
