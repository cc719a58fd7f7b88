"""A gluon.Trainer that averages gradients over all ranks."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from herring.arrays.calls import name_of_next
from herring.arrays.gradients import GradientRounds, Source, check_operator
from herring.arrays.groups import Group, scope_of
from herring.errors import InvalidArgumentError
from herring.mxnet.arrays import in_place, on_host
from herring.mxnet.order import UseOrder

__all__ = ["DistributedTrainer"]


class DistributedTrainer(mx.gluon.Trainer):
    """A gluon.Trainer whose gradients are averages over all ranks when they are applied.

    `step`, `allreduce_grads` with `update`, learning rates and states are those of gluon.Trainer.
    ``step(batch_size)`` takes the batch size of this rank, as the sums of the ranks are averaged.

    Gradients travel in the order in which the first rank's backward pass produces them: the reverse
    of the order in which its parameters are first used between the making of the trainer and its
    first step.
    """

    def __init__(
        self,
        params: Any,
        optimizer: str | mx.optimizer.Optimizer,
        optimizer_params: dict[str, Any] | None = None,
        *,
        op: str = "average",
        wire_dtype: str | None = None,
        buffer_bytes: int = 0,
        name: str | None = None,
        group: Group | None = None,
    ) -> None:
        """Exchanges nothing yet; see `broadcast_parameters`.

        Args:
          params: as of gluon.Trainer, of one context each; alike on all ranks.
          optimizer: as of gluon.Trainer.
          optimizer_params: as of gluon.Trainer.
          op: "average" or "sum".
          wire_dtype: "float16" or "bfloat16": float32 gradients travel between nodes in it.
          buffer_bytes: size of a fusion buffer; 0: chosen by the plan.
          name: of its operations. None: trainers are numbered in the order in which they are made,
            which must be the same on all ranks.
          group: those who take part; None: all ranks.

        Raises:
          InvalidArgumentError: an unknown `op`, several contexts, or sparse gradients.
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
        """Averages (collective); called by `step` and `allreduce_grads`.

        A parameter without a fresh gradient here, but on other ranks, gets the average with zeros.
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
        # The backward pass may still be at it: each gradient is waited for, in the order of the
        # plan. Those without a place in it, which the round refuses, come last.
        for i in [*(i for i in rounds.order if i in fresh), *set(fresh).difference(rounds.order)]:
            rounds.put([i], [in_place(gradients[i])])
        targets = [in_place(gradients[i]) for i in rounds.used]
        rounds.finish_into(targets)
        for i, target in zip(rounds.used, targets):
            if not on_host(gradients[i]):
                gradients[i][:] = target
            trained[i].list_data()[0]._fresh_grad = True
