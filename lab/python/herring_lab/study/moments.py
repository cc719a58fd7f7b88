"""Measures when the gradients of a BERT are produced in a backward pass (Herring paper, table II).

The model has the variables of `herring_lab.simulate.bert` in the same order, and really computes:
masked-word and next-sentence losses on random tokens, on this machine's processors. A hook on each
parameter takes the time when its gradient is complete.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

from herring.base.parts import install_command
from herring_lab.competitors import MissingLibraryError
from herring_lab.report import Chart, Table
from herring_lab.simulate import bert

#: BERT-base, and a small one for a quick test.
BASE = bert.Shape(12, 768)
_QUICK = bert.Shape(2, 64)
_HEAD = 64  # elements of an attention head
_WARMUP = 2
_LAST = 18  # rows of the paper's table
_LENGTH = 128  # tokens of a sequence, as in the paper's first phase
_BATCH = 4


def moments(quick: bool, iterations: int, report: Callable[[int, int, str], None]) -> list[Table]:
    """Times the last gradients of a backward pass beside the moments that table II implies.

    Raises:
      MissingLibraryError: torch is missing.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingLibraryError(f"moments needs torch: {install_command('torch')}")
    shape, batch, length = (_QUICK, 1, 8) if quick else (BASE, _BATCH, _LENGTH)
    passes = backward_passes(shape, batch, length, iterations, report)
    return [table(shape, batch, length, passes)]


def backward_passes(
    shape: bert.Shape,
    batch: int,
    length: int,
    iterations: int,
    report: Callable[[int, int, str], None],
) -> list[list[tuple[int, float]]]:
    """Computes, and returns for each timed pass (variable, seconds since its start) in order."""
    import torch

    model = _model(shape)
    clock = {"start": 0.0}
    produced: list[tuple[int, float]] = []

    def hook(index: int) -> Callable[[Any], None]:
        return lambda _: produced.append((index, time.perf_counter() - clock["start"]))

    for index, parameter in enumerate(model.parts):
        parameter.register_post_accumulate_grad_hook(hook(index))
    generator = torch.Generator().manual_seed(1)
    vocabulary = bert.variables(shape)[0].shape[0]
    tokens = torch.randint(vocabulary, (batch, length), generator=generator)
    segments = (torch.arange(length) >= length // 2).long().expand(batch, length)
    masked = torch.randint(length, (batch, max(1, length * 15 // 100)), generator=generator)
    passes = []
    for step in range(_WARMUP + iterations):
        report(step, _WARMUP + iterations, f"backward pass {step + 1}")
        for parameter in model.parts:
            parameter.grad = None
        loss = model(tokens, segments, masked)
        produced.clear()
        clock["start"] = time.perf_counter()
        loss.backward()
        if step >= _WARMUP:
            passes.append(list(produced))
    return passes


def table(
    shape: bert.Shape, batch: int, length: int, passes: list[list[tuple[int, float]]]
) -> Table:
    """Returns the last gradients of the passes, beside what table II implies for this shape."""
    known = bert.variables(shape)
    before_end: dict[int, list[float]] = {}
    for produced in passes:
        end = produced[-1][1]
        for index, moment in produced:
            before_end.setdefault(index, []).append(100 * (1 - moment / end))
    measured = {index: statistics.median(found) for index, found in before_end.items()}
    implied = {one.variable: 100 * (1 - one.moment) for one in bert.gradients(shape)}
    # The order of one pass; that of every pass is the same, because autograd's is fixed.
    order = [index for index, _ in passes[0]]
    total = sum(variable.elements for variable in known)
    rows = [
        {
            "from_the_end": len(order) - place,
            "variable": index,
            "name": known[index].name,
            "elements": known[index].elements,
            "before_end_percent": measured[index],
            "model_before_end_percent": implied[index],
            "bytes_percent": 100 * known[index].elements / total,
        }
        for place, index in list(enumerate(order))[-_LAST:]
    ]
    seconds = statistics.median(produced[-1][1] for produced in passes)
    orders = {tuple(index for index, _ in produced) for produced in passes}
    same = "the same" if len(orders) == 1 else f"not the same ({len(orders)} orders)"
    late = sum(row["bytes_percent"] for row in rows if row["before_end_percent"] < 1)
    notes = [
        f"median of {len(passes)} backward passes of {seconds:.3g} s after {_WARMUP}; the order of "
        f"gradients was {same} in all of them",
        f"{late:.3g} % of all bytes come in the last hundredth of the pass",
        "before end: how long before the end of the backward pass a gradient is complete, in "
        "percent of the pass; model: what the moments of the paper's table II, measured on a GPU "
        "with BERT-large, imply for a model of this shape",
    ]
    title = (
        f"The last gradients of a BERT with {shape.layers} layers of {shape.hidden} "
        f"({total / 1e6:.4g} million parameters), {batch} sequences of {length} tokens"
    )
    chart = Chart(
        "from_the_end",
        ["before_end_percent", "model_before_end_percent"],
        "gradients until the end of the backward pass, this one included",
        "time before the end (% of the pass)",
        names={"before_end_percent": "measured", "model_before_end_percent": "from table II"},
    )
    return Table("moments", title, rows, chart, notes)


def _model(shape: bert.Shape) -> Any:
    """Returns a BERT whose list ``parts`` has the parameters in the order of `bert.variables`."""
    import torch
    from torch.nn import functional

    class Bert(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(0)
            known = bert.variables(shape)
            self.parts = torch.nn.ParameterList(
                torch.ones(one.shape)
                if one.name.endswith("gamma")
                else 0.02 * torch.randn(one.shape, generator=generator)
                for one in known
            )
            self._named = {one.name: part for one, part in zip(known, self.parts)}

        def _dense(self, name: str, x: torch.Tensor) -> torch.Tensor:
            kernel, bias = self._named[f"{name}/kernel"], self._named[f"{name}/bias"]
            return functional.linear(x, kernel.t(), bias)

        def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
            gamma, beta = self._named[f"{name}/gamma"], self._named[f"{name}/beta"]
            return functional.layer_norm(x, gamma.shape, gamma, beta, 1e-12)

        def _layer(self, name: str, x: torch.Tensor) -> torch.Tensor:
            heads = (*x.shape[:2], -1, _HEAD)
            query, key, value = (
                self._dense(f"{name}/{part}", x).view(heads).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            seen = functional.scaled_dot_product_attention(query, key, value)
            seen = seen.transpose(1, 2).reshape(x.shape)
            x = self._norm(
                f"{name}/attention_norm", x + self._dense(f"{name}/attention_output", seen)
            )
            inner = functional.gelu(self._dense(f"{name}/intermediate", x))
            return self._norm(f"{name}/output_norm", x + self._dense(f"{name}/output", inner))

        def forward(
            self, tokens: torch.Tensor, segments: torch.Tensor, masked: torch.Tensor
        ) -> torch.Tensor:
            """Returns the loss of the masked words and of the next sentence."""
            words, named = self._named["embeddings/word"], self._named
            x = functional.embedding(tokens, words)
            x = x + named["embeddings/position"][: tokens.shape[1]]
            x = x + functional.embedding(segments, named["embeddings/segment"])
            x = self._norm("embeddings/norm", x)
            for layer in range(shape.layers):
                x = self._layer(f"layer_{layer}", x)
            pooled = torch.tanh(self._dense("pooler", x[:, 0]))
            logits = functional.linear(
                pooled, named["next_sentence/kernel"], named["next_sentence/bias"]
            )
            next_sentence = functional.cross_entropy(logits, tokens[:, 0] % 2)
            chosen = torch.gather(x, 1, masked.unsqueeze(-1).expand(-1, -1, shape.hidden))
            chosen = functional.gelu(self._dense("words/transform", chosen))
            chosen = self._norm("words/norm", chosen)
            scores = functional.linear(chosen, words, named["words/output_bias"])
            targets = torch.gather(tokens, 1, masked)
            return next_sentence + functional.cross_entropy(scores.flatten(0, 1), targets.flatten())

    return Bert()
