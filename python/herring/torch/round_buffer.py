"""Some gradients of a model as one array, and the series of partial rounds over it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from herring.arrays.groups import Group
from herring.partial import PartialReduction, RoundInfo
from herring.partial.allreduce import allreduce
from herring.partial.lists import digest_of
from herring.torch.tensors import check_not_capturing, dtype_name


class RoundBuffer:
    """Contributes some gradients to rounds and writes their results to `.grad`.

    Behind the gradients the array has, for each parameter, the share of workers with a gradient. A
    parameter that no worker used thus keeps `.grad` None.

    Attributes:
      parameters: The parameters, in their order in the array.
      series: The series of rounds.
      info: What is known about a result that was taken and not applied yet; None without one.
      rounds: The number of rounds whose results were applied or dropped, also in earlier series.
      sent: Whether the gradients of this step were contributed during the backward pass.
      delivered: Whether a result was taken for this step.
    """

    series: PartialReduction

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], dtype: torch.dtype, rounds: int
    ) -> None:
        """Lays out the arrays.

        Args:
          dtype: The dtype of the array.
          rounds: The number of rounds of earlier series.
        """
        self.parameters = parameters
        self.info: RoundInfo | None = None
        self.rounds = rounds
        self.sent = False
        self._seen = 0  # results of this series that `rounds` counts
        self._flushes = False
        self._places: list[slice] = []
        start = 0
        for parameter in parameters:
            self._places.append(slice(start, start + parameter.numel()))
            start += parameter.numel()
        self._used = slice(start, None)
        self.given = torch.zeros(start + len(parameters), dtype=dtype, device="cpu")
        self.mean = torch.zeros_like(self.given)
        self.delivered = False
        self._lock = threading.Lock()
        self.restart()

    def open(self, **options: Any) -> None:
        """Begins the series (collective); takes the options of `PartialReduction`."""
        self.series = PartialReduction(len(self.mean), dtype_name(self.mean.dtype), **options)

    def restart(self) -> None:
        """Expects the gradients of another backward pass."""
        self.sent = False
        self._expected = {id(parameter) for parameter in self.parameters}

    def produced(self, parameter: torch.nn.Parameter) -> None:
        """Contributes the gradients if that of `parameter` was the last one of a pass.

        A rank contributes again only after a round has ended since. If none has, the buffer leaves
        after the pass.
        """
        with self._lock:  # gradients on several devices come on several threads
            self._expected.discard(id(parameter))
            if self._expected or self.sent:
                return
            if self.series.owes and self.series.ready and self.info is None:
                self.take()
            if not self.series.owes:
                self.gather()
                self.send()
                self.sent = True

    def send(self) -> None:
        """Contributes what was gathered to the round that closes next, and counts as waiting."""
        self.series.contribute(self.given)

    def gather(self) -> None:
        """Copies the gradients to the array that is contributed."""
        check_not_capturing(self.parameters, self.series.name)
        used = self.given[self._used]
        for index, (parameter, place) in enumerate(zip(self.parameters, self._places)):
            gradient = parameter.grad
            used[index] = gradient is not None
            if gradient is None:
                self.given[place].zero_()
            else:
                if gradient.layout != torch.strided:
                    gradient = gradient.to_dense()
                self.given[place].view(parameter.shape).copy_(gradient.detach())

    def take(self) -> None:
        """Takes the next result, for which this rank may have to wait."""
        self.info = self.series.take(self.mean)
        self.delivered = True

    def begin_flush(self, pending: bool) -> None:
        """Contributes for the last time: the gradients if they are `pending`, or zeros."""
        if pending and not self.sent:
            self.gather()
        else:
            self.given.zero_()
        self.series.begin_flush(self.given)
        self._flushes = True

    def take_last(self) -> None:
        """Takes the next result of a series that is being flushed, unless it has ended."""
        if self.info is None and not self.series.ended:
            self.info = next(self.series.flush(self.mean))

    def show(self) -> None:
        """Writes the result to `.grad` if it is not applied yet, and otherwise clears `.grad`."""
        if self.info is None:
            for parameter in self.parameters:
                parameter.grad = None
            return
        used = self.mean[self._used].tolist()
        for parameter, place, share in zip(self.parameters, self._places, used):
            if share == 0:
                parameter.grad = None
                continue
            # The user may keep the gradient, and the next result is written to the same memory.
            view = self.mean[place].view(parameter.shape)
            parameter.grad = view.to(device=parameter.device, dtype=parameter.dtype, copy=True)

    def applied(self, digest_every: int) -> None:
        """Counts the results that were taken, of which the newest was applied."""
        self.info = None
        self.rounds += self.series.rounds - self._seen
        self._seen = self.series.rounds
        if digest_every and self.rounds % digest_every == 0 and not self._flushes:
            self.series.digest(self.digest())

    def digest(self) -> int:
        """Returns a 64-bit hash of the parameters; equal after equal numbers of rounds."""
        return digest_of(
            parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            for parameter in self.parameters
        )

    def average(self, name: str, dtype: torch.dtype, group: Group | None) -> None:
        """Gives the mean over all ranks to the parameters (collective); adds up in `dtype`."""
        flat = torch.empty(self._used.start, dtype=dtype, device="cpu")
        for parameter, place in zip(self.parameters, self._places):
            flat[place].view(parameter.shape).copy_(parameter.detach())
        allreduce(flat.numpy(), name=name, group=group)
        with torch.no_grad():
            for parameter, place in zip(self.parameters, self._places):
                parameter.copy_(flat[place].view(parameter.shape))


def split(
    parameters: Sequence[torch.nn.Parameter], size: int, itemsize: int
) -> list[list[torch.nn.Parameter]]:
    """Returns parameters in the order in which a backward pass usually produces their gradients.

    Args:
      size: The bytes of a part, except the last one; a larger gradient is a part by itself. 0: all
        parameters are one part, in their own order.
      itemsize: The bytes of an element.
    """
    if not size:
        return [list(parameters)]
    parts: list[list[torch.nn.Parameter]] = []
    left = 0
    for parameter in reversed(parameters):
        count = parameter.numel() * itemsize
        if not parts or count > left:
            parts.append([])
            left = size
        parts[-1].append(parameter)
        left -= count
    return parts
