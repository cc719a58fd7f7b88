"""A part of a model that meets by itself: outer parameters, their optimizer, and the rounds.

A *meeting* averages how far the ranks have come since the last one (DiLoCo; Douillard et al. 2023).
`herring.torch.diloco` says when fragments meet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from herring.arrays.agreement import job_ranks
from herring.arrays.arguments import shown
from herring.arrays.gradients import PlannedList
from herring.arrays.groups import Group, scope_of
from herring.arrays.objects import allgather_plain
from herring.base.units import ranks_text
from herring.errors import HerringError, InvalidArgumentError, MismatchError
from herring.torch.tensors import dtype_name

MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]

# The note of a meeting has one byte for each of these flags, then a digest of the outer parameters
# and its complement, which together show whether ranks differ, and then the tokens of each rank.
_FLAGS = ("failed", "weighted", "unweighted")
_DIGEST_BYTES = 8
_TOKEN_BYTES = 8


class Share(NamedTuple):
    """What a rank brings to a meeting."""

    active: bool  # whether the rank contributes
    tokens: int  # the weight of its contribution; 0 means that none was given
    unit: float  # the tokens that have weight 1, the same on all ranks
    # Why the rank cannot take part; the meeting then fails on all ranks.
    refusal: HerringError | None = None


def outer_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Returns the dtype of the outer copy of a parameter: 16-bit ones have one in float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


class Fragment:
    """Parameters, and perhaps buffers, that meet together.

    The outer copy of a tensor is what all ranks agreed on at the last meeting. Buffers have one,
    too, but no optimizer: their outer copy becomes the average.

    Attributes:
      meetings: The number of meetings applied.
      steps: The steps of this rank at the beginning of the last meeting that was applied.
      tokens: The same for its tokens.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        make_optimizer: MakeOptimizer,
    ) -> None:
        self.names = list(parameters)  # the names of the parameters
        self.buffers = list(buffers)  # the names of the buffers
        # The outer copies by name.
        self.outer = {
            name: torch.nn.Parameter(
                tensor.detach().to(outer_dtype(tensor), copy=True), requires_grad=False
            )
            for name, tensor in [*parameters.items(), *buffers.items()]
        }
        optimizer = make_optimizer([self.outer[name] for name in self.names])
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgumentError(
                f"outer_optimizer returned {shown(optimizer)}; it must return a torch optimizer of "
                "the parameters that it is given"
            )
        self.optimizer = optimizer  # the outer optimizer of the parameters
        # How far the ranks have come on average, by name, if a meeting has that result and has not
        # applied it. It is subtracted from the outer copies.
        self.averages: dict[str, torch.Tensor] | None = None
        self.under_way = False  # whether a meeting has begun and is not yet applied
        self.meetings = self.steps = self.tokens = 0
        self._began = (0, 0)
        self._plan: PlannedList | None = None
        self._places: dict[str, torch.Tensor] = {}
        self._share = Share(True, 0, 1.0)
        self._refusal: HerringError | None = None
        self._group: Group | None = None
        self.name = ""

    def plan(self, name: str, group: Group | None, **options: Any) -> None:
        """Makes the planned operation of the meetings (collective)."""
        self.name, self._group = name, group
        sizes = [(outer.numel(), dtype_name(outer.dtype)) for outer in self.outer.values()]
        self._plan = PlannedList(
            sizes,
            range(len(sizes)),
            name=name,
            note_bytes=len(_FLAGS) + 2 * _DIGEST_BYTES + _TOKEN_BYTES * scope_of(group).size,
            group=group,
            **options,
        )
        arenas = [torch.from_numpy(self._plan.arena(i)) for i in range(len(self._plan.arenas))]
        cut = self._plan.cut(arenas)
        self._places = {
            key: cut[place].view(outer.dtype).view(outer.shape)
            for place, (key, outer) in enumerate(self.outer.items())
        }

    def close(self) -> None:
        """Ends the plan. A meeting whose averages have not come yet never was."""
        if self._plan is not None:
            self._plan.close()
        self._plan, self._places = None, {}
        if self.averages is None:
            self.under_way = False

    @property
    def planned(self) -> PlannedList:
        """The planned operation."""
        assert self._plan is not None
        return self._plan

    def take_over(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Makes the outer copies those of `tensors`, which are equal on all ranks."""
        for name, outer in self.outer.items():
            outer.copy_(tensors[name].detach())

    def inherit(self, name: str, other: Fragment) -> None:
        """Takes over the outer copy of a tensor, and its optimizer's state, from a fragment."""
        mine, theirs = self.outer[name], other.outer[name]
        mine.copy_(theirs)
        if theirs in other.optimizer.state:
            self.optimizer.state[mine] = other.optimizer.state[theirs]
        for group, old in zip(self.optimizer.param_groups, other.optimizer.param_groups):
            group.update((key, value) for key, value in old.items() if key != "params")
        self.meetings = max(self.meetings, other.meetings)

    def digest(self) -> bytes:
        """Returns a hash of the outer copies."""
        state = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for outer in self.outer.values():
            state.update(outer.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return state.digest()

    # -- a meeting --------------------------------------------------------------------------------

    @torch.no_grad()
    def begin(
        self,
        tensors: Mapping[str, torch.Tensor],
        share: Share,
        *,
        steps: int,
        tokens: int,
        with_digest: bool,
    ) -> None:
        """Begins a meeting and returns at once; with a digest, ranks compare their outer copies."""
        plan = self.planned
        self._share, self._refusal = share, share.refusal
        self._began = (steps, tokens)
        self.under_way = True
        plan.begin(active=share.active)
        if not share.active:
            return
        if share.refusal is None:
            for name, outer in self.outer.items():
                tensor = tensors[name].detach()
                # A 16-bit parameter began at the rounded outer copy.
                began = outer.to(tensor.dtype).to(outer.dtype)
                moved = began.sub_(tensor) if began is not outer else outer - tensor
                if share.tokens:
                    moved.mul_(share.tokens / share.unit)
                self._places[name].copy_(moved)
        digest = self.digest() if with_digest else bytes(_DIGEST_BYTES)
        scope = scope_of(self._group)
        weights = bytearray(_TOKEN_BYTES * scope.size)
        own = scope.rank * _TOKEN_BYTES
        weights[own : own + _TOKEN_BYTES] = share.tokens.to_bytes(_TOKEN_BYTES, "little")
        flags = bytes((share.refusal is not None, share.tokens > 0, share.tokens == 0))
        plan.note(flags + digest + bytes(255 - byte for byte in digest) + bytes(weights))
        plan.filled(range(len(self.outer)))

    def settle(self) -> None:
        """Waits for the averages; an error if a rank refused, or if outer copies differ."""
        if self.averages is not None:
            return
        plan = self.planned
        plan.wait()
        if not plan.contributors:  # Nobody has given a note.
            self.under_way = False
            return
        notes = plan.notes
        flags = {flag for flag, told in zip(_FLAGS, notes) if told}
        digests, tokens = len(_FLAGS), len(_FLAGS) + 2 * _DIGEST_BYTES
        largest, others = (
            notes[digests : digests + _DIGEST_BYTES],
            notes[digests + _DIGEST_BYTES : tokens],
        )
        unequal = any(one + other != 255 for one, other in zip(largest, others))
        if "failed" in flags or {"weighted", "unweighted"} <= flags or unequal:
            self.under_way = False
            self._raise(flags)
        weights = notes[tokens:]
        self._note(
            [
                int.from_bytes(weights[at : at + _TOKEN_BYTES], "little")
                for at in range(0, len(weights), _TOKEN_BYTES)
            ]
        )

    def _note(self, tokens: Sequence[int]) -> None:
        """Keeps the averages; those of ranks with tokens are weighted."""
        total = sum(tokens)
        self.averages = {}
        for name, outer in self.outer.items():
            place = self._places[name]
            if total:
                place.mul_(self.planned.contributors * self._share.unit / total)
            self.averages[name] = place.to(outer.device)

    def _raise(self, flags: set[str]) -> None:
        told = allgather_plain(
            [self._share.active, self._share.tokens > 0, str(self._refusal or "")],
            name=f"{self.name}.failed",
            group=self._group,
        )
        if self._refusal is not None:
            raise self._refusal
        ranks = job_ranks(range(len(told)), self._group)
        refused = [(rank, why) for rank, (_, _, why) in zip(ranks, told) if why]
        if refused:
            who = ranks_text([rank for rank, _ in refused])
            raise InvalidArgumentError(f"{self.name}: {who} refused the meeting: {refused[0][1]}")
        if {"weighted", "unweighted"} <= flags:
            without = [r for r, (active, gave, _) in zip(ranks, told) if active and not gave]
            raise InvalidArgumentError(
                f"{self.name}: {ranks_text(without)} gave no tokens and the others did; add to "
                "`tokens` on all ranks, or on none"
            )
        raise MismatchError(
            f"{self.name}: the outer parameters differ between ranks, although all have made "
            f"{self.meetings} meetings. Do not change the outer parameters, or the outer "
            "optimizer's settings, on some ranks only; processors of different kinds may round "
            "differently"
        )

    @torch.no_grad()
    def apply(self, tensors: Mapping[str, torch.Tensor], alpha: float) -> None:
        """Waits for the averages, makes the outer step, and gives this rank the result.

        Args:
          alpha: The part that a rank keeps of its own parameters.
        """
        self.settle()
        if self.averages is None:
            return
        for name in self.names:
            average = self.averages[name]
            # A parameter that was frozen since must not follow the outer optimizer's momentum.
            frozen = not tensors[name].requires_grad and not average.any()
            self.outer[name].grad = None if frozen else average
        self.optimizer.step()
        for name in self.names:
            self.outer[name].grad = None
        for name in self.buffers:
            self.outer[name].sub_(self.averages[name])
        self.give(tensors, alpha)
        self.averages = None
        self.under_way = False
        self.meetings += 1
        self.steps, self.tokens = self._began

    @torch.no_grad()
    def give(self, tensors: Mapping[str, torch.Tensor], alpha: float) -> None:
        """Gives this rank the outer copies, of which it keeps a part of its own."""
        for name, outer in self.outer.items():
            tensor = tensors[name].detach()
            if alpha and name not in self.buffers:
                mixed = torch.lerp(outer, tensor.to(outer.device, outer.dtype), alpha)
                tensor.copy_(mixed)
            else:
                tensor.copy_(outer)

    # -- what is saved ----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Returns all that this rank needs to go on; waits for averages that are under way."""
        if self.under_way:
            self.settle()
        return {
            "parameters": {name: self.outer[name].detach() for name in self.names},
            "buffers": {name: self.outer[name].detach() for name in self.buffers},
            "optimizer": self.optimizer.state_dict(),
            "averages": self.averages,
            "began": list(self._began),
            "meetings": self.meetings,
            "steps": self.steps,
            "tokens": self.tokens,
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Any]) -> None:
        """Continues with what `state` has returned, for the same names."""
        for name, values in [*state["parameters"].items(), *state["buffers"].items()]:
            self.outer[name].copy_(values)
        self.optimizer.load_state_dict(state["optimizer"])
        averages = state["averages"]
        self.averages = averages and {
            name: values.to(self.outer[name].device, copy=True) for name, values in averages.items()
        }
        self.under_way = bool(averages)
        self._began = tuple(state["began"])
        self.meetings = state["meetings"]
        self.steps, self.tokens = state["steps"], state["tokens"]

    def residuals(self) -> dict[str, torch.Tensor]:
        """Returns what rounding to 8 bits has lost on this rank, by name."""
        found = self.planned.residuals()
        return {
            name: torch.from_numpy(found[place]).view(outer.shape)
            for place, (name, outer) in enumerate(self.outer.items())
        }

    def give_residuals(self, residuals: Mapping[str, torch.Tensor]) -> None:
        """Replaces what rounding has lost on this rank; what is missing becomes 0."""
        self.planned.set_residuals(
            {
                place: residuals[name].reshape(-1).numpy()
                for place, name in enumerate(self.outer)
                if name in residuals
            }
        )


def split(parameters: Mapping[str, torch.Tensor], fragments: int) -> list[dict[str, torch.Tensor]]:
    """Divides parameters into consecutive parts with about equally many elements."""
    items = list(parameters.items())
    left = sum(tensor.numel() for _, tensor in items)
    parts: list[dict[str, torch.Tensor]] = []
    for after in range(fragments - 1, -1, -1):
        part: dict[str, torch.Tensor] = {}
        share, size = left / (after + 1), 0
        while items and (not part or (len(items) > after and after)):
            nearer = abs(size + items[0][1].numel() - share) <= abs(size - share)
            if part and not nearer:
                break
            name, tensor = items.pop(0)
            part[name] = tensor
            size += tensor.numel()
        if not after:
            part.update(items)
        left -= size
        parts.append(part)
    return parts
