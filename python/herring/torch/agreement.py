"""Checks that all ranks describe the same thing, with a message that shows the first difference."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import torch

import herring
from herring.arrays.groups import Group
from herring.errors import MismatchError
from herring.torch.tensors import dense_strides, dtype_name


def describe(name: str, tensor: torch.Tensor) -> str:
    """One line with all that must be alike on all ranks for a tensor's bytes to be exchanged."""
    line = f"{name} {dtype_name(tensor.dtype)} {list(tensor.shape)}"
    strides = dense_strides(tensor)
    if strides != torch.empty(tensor.shape, device="meta").stride():
        line += f" strides {list(strides)}"
    if isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad:
        line += " frozen"
    return line


def ranks_text(ranks: Sequence[int]) -> str:
    """Names ranks in a message: "rank 3", "ranks 0, 2, 5", shortened when there are many."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def job_ranks(places: Iterable[int], group: Group | None) -> list[int]:
    """The ranks in the job, which messages name, of ranks inside a group."""
    return [place if group is None else group.ranks[place] for place in places]


def require_agreement(
    lines: Iterable[str], *, what: str, name: str, group: Group | None = None
) -> None:
    """Compares a list of lines across all ranks (collective).

    Only a digest travels unless there is a difference.

    Args:
      lines: this rank's description, in a fixed order.
      what: what a line describes, for the message ("parameter").
      name: prefix of the names of the operations used.
      group: those who take part; None: all ranks.

    Raises:
      MismatchError: on every rank, with the first line that differs and who had what.
    """
    mine = list(lines)
    digest = hashlib.sha256("\n".join(mine).encode()).hexdigest()
    digests = herring.allgather_object(digest, name=f"{name}.digest", group=group)
    if len(set(digests)) == 1:
        return
    everyone = herring.allgather_object(mine, name=f"{name}.lists", group=group)
    for index in range(max(map(len, everyone))):
        holders: dict[str, list[int]] = {}
        for rank, theirs in zip(job_ranks(range(len(everyone)), group), everyone):
            line = theirs[index] if index < len(theirs) else f"(only {len(theirs)} of them)"
            holders.setdefault(line, []).append(rank)
        if len(holders) > 1:
            parts = "; ".join(f"{ranks_text(r)}: {line}" for line, r in holders.items())
            raise MismatchError(
                f"{name}: {what} {index} differs between ranks: {parts}. "
                "Build the same model, in the same order, on every rank"
            )
    raise MismatchError(f"{name}: the lists differ between ranks")  # digests differ, lines do not
