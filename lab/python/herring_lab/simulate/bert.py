"""Describes the gradients of BERT: their sizes, their order, and when each is produced.

The functions are pure. Workers that imitate training use them. The sources are:

* Shapes: J. Devlin et al., *BERT*, 2018. There are 24 layers, hidden size 1024, intermediate size
  4096, 512 positions, 2 segments, a vocabulary of 30522, and the pre-training heads. In the
  published implementation's order these are the 398 variables of the Herring paper, with the
  indices of its Table II.
* Moments and lengths: *Herring* (SC20), section IV.B, Table II, rows 3 to 18. Rows 1 and 2 have
  lost a digit of their times. Row 18 shows that the vocabulary was padded to 30528 words, a
  multiple of 8, which the 16-bit matrix units of that time require.

Rows 3 to 18 hold eleven of the sixteen variables of a layer, and the embeddings. The time of every
other gradient follows from its counterpart in these rows, see `_gap`. All functions are about
BERT-large unless another `Shape` is given.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

from herring.errors import InvalidArgumentError

#: The forward pass as a part of a step; the backward pass has twice as many multiplications.
FORWARD_PART = 1 / 3
#: Gradients within this part of a step appear together, at the last of their moments. The last
#: gradient, a tenth of all bytes, comes 1/333 of a step after the previous one, and so stays alone.
TOGETHER = 1 / 400
#: Number of fusion buffers in Herring's plan for the whole model (`choose_buffer_bytes`).
FUSION_BUFFERS = 32
#: Number of buckets of 25 MiB that torch's DistributedDataParallel makes of the model, which has
#: 672 MB in 16 bits.
DDP_BUCKETS = 26
#: Number of Horovod's fusion buffers of 128 MiB that these 672 MB fill.
HOROVOD_BUFFERS = 5
#: Computing time of a node's step: 512 sequences at 1143 per second (section IV.B).
STEP_SECONDS = 512 / 1143

_VOCABULARY = -(-30522 // 8) * 8
_POSITIONS = 512
_SEGMENTS = 2

#: Rows 3 to 18 of Table II: variable, elements, microseconds on the authors' clock.
TABLE_II = (
    (15, 4194304, 3822661),
    (13, 1024, 3824614),
    (14, 1024, 3825005),
    (12, 1024, 3826271),
    (11, 1048576, 3831110),
    (10, 1024, 3842720),
    (9, 1048576, 3849548),
    (8, 1024, 3850360),
    (7, 1048576, 3857206),
    (6, 1024, 3857998),
    (5, 1048576, 3863448),
    (3, 1024, 3865702),
    (4, 1024, 3866097),
    (2, 2048, 3869997),
    (1, 524288, 3873000),
    (0, 31260672, 3882258),
)


@dataclasses.dataclass(frozen=True)
class Shape:
    """The numbers in which the published sizes of BERT differ.

    Attributes:
      layers: layers of the encoder.
      hidden: the hidden size; the intermediate size is four times that.
    """

    layers: int
    hidden: int


#: BERT-large.
LARGE = Shape(24, 1024)


@dataclasses.dataclass(frozen=True)
class Variable:
    """A trainable variable.

    Attributes:
      name: the name in the published implementation, shortened.
      shape: the shape of the variable and of its gradient.
    """

    name: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Gradient:
    """A gradient of one backward pass.

    Attributes:
      variable: index into `variables`.
      moment: when the gradient is ready, as a part of the backward pass: above 0; 1 for the last.
    """

    variable: int
    moment: float


def _dense(name: str, inputs: int, outputs: int) -> list[Variable]:
    return [Variable(f"{name}/kernel", (inputs, outputs)), Variable(f"{name}/bias", (outputs,))]


def _norm(name: str, hidden: int) -> list[Variable]:
    return [Variable(f"{name}/beta", (hidden,)), Variable(f"{name}/gamma", (hidden,))]


def variables(shape: Shape = LARGE) -> list[Variable]:
    """Returns the variables in order of registration.

    The embeddings have 5 variables, each layer 16, the pooler 2, the masked-word head 5 (its output
    matrix is the word embedding) and the next-sentence head 2. BERT-large has 398.
    """
    hidden, intermediate = shape.hidden, 4 * shape.hidden
    found = [
        Variable("embeddings/word", (_VOCABULARY, hidden)),
        Variable("embeddings/position", (_POSITIONS, hidden)),
        Variable("embeddings/segment", (_SEGMENTS, hidden)),
        *_norm("embeddings/norm", hidden),
    ]
    for layer in range(shape.layers):
        name = f"layer_{layer}"
        for part in ("query", "key", "value", "attention_output"):
            found += _dense(f"{name}/{part}", hidden, hidden)
        found += _norm(f"{name}/attention_norm", hidden)
        found += _dense(f"{name}/intermediate", hidden, intermediate)
        found += _dense(f"{name}/output", intermediate, hidden)
        found += _norm(f"{name}/output_norm", hidden)
    found += _dense("pooler", hidden, hidden)
    found += _dense("words/transform", hidden, hidden)
    found += _norm("words/norm", hidden)
    found.append(Variable("words/output_bias", (_VOCABULARY,)))
    found.append(Variable("next_sentence/kernel", (2, hidden)))
    found.append(Variable("next_sentence/bias", (2,)))
    return found


# Microseconds since the previous gradient, for the variables in rows 4 to 18.
_SEEN = {after[0]: after[2] - before[2] for before, after in itertools.pairwise(TABLE_II)}
_FIRST, _LAYER = 5, 16  # the first variable of layer 0; variables of a layer


def _gap(index: int, variable: Variable) -> float:
    """Returns the microseconds between a gradient of BERT-large and the one before it.

    The clock is that of Table II. All layers repeat what rows 3 to 18 show of layer 0. A gradient
    that is not in these rows takes as long as its counterpart there. A norm takes as long as that
    of the attention (rows 4 and 5). The bias of a matrix before a norm takes as long as in row 6,
    and other biases as in row 10. A matrix takes time in proportion to its elements, like the
    multiplications, based on the attention's output (row 7).
    """
    if index < _FIRST:
        return _SEEN[index]
    if index < _FIRST + LARGE.layers * _LAYER:
        same = _FIRST + (index - _FIRST) % _LAYER
        if same in _SEEN:
            return _SEEN[same]
    if variable.name.endswith("/beta"):
        return _SEEN[13]
    if variable.name.endswith("/gamma"):
        return _SEEN[14]
    if variable.name.endswith(("/output/bias", "transform/bias")):
        return _SEEN[12]
    if len(variable.shape) == 1:
        return _SEEN[8]
    return _SEEN[11] * variable.elements / LARGE.hidden**2


def _counterpart(index: int, shape: Shape) -> int:
    """Returns the index in BERT-large of the variable `index` of another shape."""
    if index < _FIRST:
        return index
    behind = index - _FIRST - shape.layers * _LAYER
    if behind >= 0:
        return _FIRST + LARGE.layers * _LAYER + behind
    return _FIRST + (index - _FIRST) % _LAYER


def gradients(shape: Shape = LARGE) -> list[Gradient]:
    """Returns all gradients in the order in which they are produced.

    This is the reverse order of registration, except for the two variables of a norm (rows 4, 5, 14
    and 15). For other shapes than BERT-large, the time of a gradient is that of its counterpart in
    BERT-large, in proportion to their elements.
    """
    known, large = variables(shape), variables()
    order = list(range(len(known) - 1, -1, -1))
    for place, index in enumerate(order[:-1]):
        if known[index].name.endswith("/gamma"):
            order[place], order[place + 1] = order[place + 1], index
    produced = []
    clock = 0.0
    for index in order:
        same = _counterpart(index, shape)
        clock += _gap(same, large[same]) * known[index].elements / large[same].elements
        produced.append((index, clock))
    return [Gradient(index, moment / clock) for index, moment in produced]


def scaled_elements(nbytes: float) -> list[int]:
    """Scales all variables to about `nbytes` of float32 in total.

    Returns:
      The elements of each variable, at least 1.

    Raises:
      InvalidArgumentError: `nbytes` is too small for the sizes to keep their proportions.
    """
    elements = [variable.elements for variable in variables()]
    if nbytes < 256 * len(elements):
        raise InvalidArgumentError(
            f"{nbytes:.0f} bytes are too few for {len(elements)} gradients, which need "
            f"{256 * len(elements)}: use more computing or a faster link"
        )
    factor = nbytes / 4 / sum(elements)
    return [max(1, round(count * factor)) for count in elements]


def schedule() -> list[tuple[int, float]]:
    """Returns (variable, moment as a part of the step) in order of production.

    The forward pass comes first. Gradients produced within `TOGETHER` have the same moment.
    """
    moment = math.inf
    found: list[tuple[int, float]] = []
    for gradient in reversed(gradients()):
        own = FORWARD_PART + (1 - FORWARD_PART) * gradient.moment
        if own < moment - TOGETHER:
            moment = own
        found.append((gradient.variable, moment))
    return found[::-1]
