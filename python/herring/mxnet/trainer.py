"""A gluon.Trainer that averages gradients over all ranks."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from herring.arrays.arguments import Operator
from herring.arrays.calls import name_of_next
from herring.arrays.gradients import GradientRounds, Source, check_operator
from herring.arrays.groups import Group, scope_of
from herring.errors import InvalidArgumentError
from herring.mxnet.arrays import in_place, on_host
from herring.mxnet.order import UseOrder

__all__ = ["DistributedTrainer"]

_TRAINER = "herring.mxnet.DistributedTrainer"


class DistributedTrainer(mx.gluon.Trainer):
    """A gluon.Trainer that averages gradients over all ranks before it applies them.

    `step`, `allreduce_grads` with `update`, learning rates and states work as in gluon.Trainer.
    Pass the batch size of one rank to ``step(batch_size)``, because the ranks' gradients are
    averaged.

    Gradients are sent in the order in which the first rank's backward pass produces them. That is
    the reverse of the order in which its parameters are first used before the first step.
    """

    def __init__(
        self,
        params: Any,
        optimizer: str | mx.optimizer.Optimizer,
        optimizer_params: dict[str, Any] | None = None,
        *,
        op: Operator = "average",
        wire_dtype: str | None = None,
        buffer_bytes: int = 0,
        name: str | None = None,
        group: Group | None = None,
    ) -> None:
        """Creates the trainer without communicating.

        `broadcast_parameters` gives all ranks the same initial parameters.

        Args:
          params: the parameters to train, each on one context; the same on all ranks.
          optimizer: an optimizer or its name, for gluon.Trainer.
          optimizer_params: keyword arguments of the optimizer, for gluon.Trainer.
          op: "average" or "sum".
          wire_dtype: "float16" or "bfloat16" sends float32 gradients between nodes in that dtype;
            None sends them unchanged.
          buffer_bytes: fusion-buffer size in bytes; 0 lets the plan choose.
          name: prefix of the operation names, the same on all ranks. None numbers the trainers in
            the order of their creation, which must be the same on all ranks.
          group: the ranks that take part; None means all ranks.

        Raises:
          InvalidArgumentError: `op` is unknown, parameters are on several contexts, or gradients
            are sparse.
          ShutdownError: `herring.init` was not called.
        """
        check_operator(op)
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        if self._contexts is not None and len(self._contexts) > 1:
            raise InvalidArgumentError(
                f"parameters are on {self._contexts}; start one process per device instead"
            )
        if self._contains_sparse_grad or self._contains_sparse_weight:
            raise InvalidArgumentError(
                "sparse gradients are not averaged; build the block with sparse_grad=False"
            )
        self._herring_name = name or name_of_next("trainer", group)
        self._herring_size = scope_of(group).size
        self._herring_options = {
            "op": op,
            "wire_dtype": wire_dtype,
            "buffer_bytes": buffer_bytes,
            "group": group,
        }
        self._herring_rounds: dict[tuple[Source, ...], GradientRounds] = {}
        first = scope_of(group).rank == 0 and self._herring_size > 1
        self._herring_uses = UseOrder(self._params if first else [])

    def _allreduce_grads(self) -> None:
        """Averages gradients over all ranks (collective); `step` and `allreduce_grads` call this.

        If a parameter has a fresh gradient on other ranks only, this rank contributes zeros.
        """
        if self._herring_size == 1:
            return
        places = [i for i, param in enumerate(self._params) if param.grad_req != "null"]
        trained = [self._params[i] for i in places]
        if not trained:
            return
        sources = tuple(
            Source(param.name, tuple(param.shape), np.dtype(param.dtype).name) for param in trained
        )
        fresh = [i for i, param in enumerate(trained) if param.list_data()[0]._fresh_grad]
        rounds = self._herring_rounds.get(sources)
        if rounds is None:
            name = f"{self._herring_name}.{len(self._herring_rounds)}"
            uses = self._herring_uses.end()
            order = [places.index(i) for i in uses if i in places]
            rounds = GradientRounds(sources, fresh, name=name, order=order, **self._herring_options)
            self._herring_rounds[sources] = rounds
        gradients = [param.list_grad()[0] for param in trained]
        # The backward pass may still be running: each gradient is waited for in the plan's order.
        # Gradients without a place in the plan come last; the round fails because of them.
        for i in [*(i for i in rounds.order if i in fresh), *set(fresh).difference(rounds.order)]:
            rounds.put([i], [in_place(gradients[i], _TRAINER)])
        targets = [in_place(gradients[i], _TRAINER) for i in rounds.used]
        rounds.finish_into(targets)
        for i, target in zip(rounds.used, targets):
            if not on_host(gradients[i]):
                gradients[i][:] = target
            trained[i].list_data()[0]._fresh_grad = True
