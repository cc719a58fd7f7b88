"""Lists models by name, with the number, sizes and moments of their gradients.

Layers come from the published architectures, so that their sizes add up to the published numbers of
parameters. A layer's part of the backward pass is its part of the multiplications in matrices and
convolutions that have parameters. Norms, activations and the attention itself are left out. All
gradients of a layer are ready at once. If a matrix is used twice (embedding and output), its
gradient is complete at the second use. The moments of BERT were measured: see
`herring_lab.simulate.bert`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Callable, Sequence

from herring.errors import ConfigurationError
from herring_lab.simulate import bert


@dataclasses.dataclass(frozen=True)
class Gradient:
    """A gradient of one backward pass, in order of production.

    Attributes:
      elements: the number of elements.
      moment: when the gradient is ready, as a part of the backward pass: above 0; 1 for the last.
    """

    elements: int
    moment: float


@dataclasses.dataclass(frozen=True)
class Layer:
    """Variables that are used together, in the order of the forward pass.

    Attributes:
      elements: the elements of each variable; empty: only the layer's work counts.
      work: multiplications per sample or token in the forward pass.
    """

    elements: Sequence[int]
    work: float = 0.0


@dataclasses.dataclass(frozen=True)
class Entry:
    """A model of the catalogue.

    Attributes:
      parameters: the number that was published, or that the published implementation counts.
      source: the publication.
      make: a function that returns the gradients in order of production.
    """

    parameters: int
    source: str
    make: Callable[[], list[Gradient]]


def even_gradients(elements: int, count: int = 128) -> list[Gradient]:
    """Returns equal gradients, evenly spread in time, for a model of known size."""
    count = min(count, elements)
    sizes = [elements * (i + 1) // count - elements * i // count for i in range(count)]
    return [Gradient(size, (i + 1) / count) for i, size in enumerate(sizes)]


def gradients(name: str) -> list[Gradient]:
    """Returns the gradients of a model of the catalogue in order of production.

    Raises:
      ConfigurationError: the name is not in the catalogue; the error lists all names.
    """
    if name not in MODELS:
        near = difflib.get_close_matches(name.lower().replace("_", "-"), MODELS, 1)
        raise ConfigurationError(
            f"--model {name!r} is not known{f' (perhaps {near[0]}?)' if near else ''}; there are "
            f"{', '.join(MODELS)}; for another model give the bytes of its gradients with --size"
        )
    return MODELS[name].make()


def scaled(layers: Sequence[Layer]) -> list[Gradient]:
    """Returns the gradients of layers that are given in the order of the forward pass."""
    total = sum(layer.work for layer in layers)
    found: list[Gradient] = []
    done = 0.0
    for layer in reversed(layers):
        done += layer.work
        found += [Gradient(count, done / total) for count in reversed(layer.elements)]
    if found:
        # The last gradient ends the pass, even if its layer has no multiplications.
        found[-1] = dataclasses.replace(found[-1], moment=1.0)
    return found


# -- convolutions ---------------------------------------------------------------------------------


def _conv(inputs: int, outputs: int, kernel: int, side: int, norm: bool = True) -> Layer:
    """Returns a convolution with side x side results, and with a norm or otherwise a bias."""
    weights = inputs * outputs * kernel * kernel
    return Layer([weights, outputs, outputs] if norm else [weights, outputs], weights * side * side)


def _dense(inputs: int, outputs: int) -> Layer:
    return Layer([inputs * outputs, outputs], inputs * outputs)


def _resnet(blocks: Sequence[int]) -> list[Gradient]:
    layers = [_conv(3, 64, 7, 112)]
    inputs, side = 64, 56
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            before = side
            if block == 0 and stage > 0:
                side //= 2
            # The stride is in the 3 x 3 convolution.
            layers += [
                _conv(inputs, width, 1, before),
                _conv(width, width, 3, side),
                _conv(width, 4 * width, 1, side),
            ]
            if block == 0:
                layers.append(_conv(inputs, 4 * width, 1, side))
            inputs = 4 * width
    return scaled([*layers, _dense(inputs, 1000)])


# The side of the results of an inception module, and the widths of its convolutions: 1 x 1; before
# 3 x 3, and 3 x 3; before 5 x 5, and 5 x 5; after the pooling (table 1 of the publication).
_INCEPTIONS = (
    (28, (64, 96, 128, 16, 32, 32)),
    (28, (128, 128, 192, 32, 96, 64)),
    (14, (192, 96, 208, 16, 48, 64)),
    (14, (160, 112, 224, 24, 64, 64)),
    (14, (128, 128, 256, 24, 64, 64)),
    (14, (112, 144, 288, 32, 64, 64)),
    (14, (256, 160, 320, 32, 128, 128)),
    (7, (256, 160, 320, 32, 128, 128)),
    (7, (384, 192, 384, 48, 128, 128)),
)


def _googlenet() -> list[Gradient]:
    def conv(inputs: int, outputs: int, kernel: int, side: int) -> Layer:
        return _conv(inputs, outputs, kernel, side, norm=False)

    layers = [conv(3, 64, 7, 112), conv(64, 64, 1, 56), conv(64, 192, 3, 56)]
    inputs = 192
    for number, (side, (one, small, three, least, five, pooled)) in enumerate(_INCEPTIONS):
        layers += [
            conv(inputs, one, 1, side),
            conv(inputs, small, 1, side),
            conv(small, three, 3, side),
            conv(inputs, least, 1, side),
            conv(least, five, 5, side),
            conv(inputs, pooled, 1, side),
        ]
        inputs = one + three + five + pooled
        if number in (2, 5):  # the modules whose results have a classifier of their own
            layers += [conv(inputs, 128, 1, 4), _dense(2048, 1024), _dense(1024, 1000)]
    return scaled([*layers, _dense(inputs, 1000)])


def _vgg(stages: Sequence[int]) -> list[Gradient]:
    layers = []
    inputs, side = 3, 224
    for stage, count in enumerate(stages):
        for _ in range(count):
            width = min(64 << stage, 512)
            layers.append(_conv(inputs, width, 3, side, norm=False))
            inputs = width
        side //= 2
    return scaled([*layers, _dense(25088, 4096), _dense(4096, 4096), _dense(4096, 1000)])


# -- transformers ---------------------------------------------------------------------------------


def _bert(shape: bert.Shape) -> list[Gradient]:
    known = bert.variables(shape)
    return [Gradient(known[g.variable].elements, g.moment) for g in bert.gradients(shape)]


def _blocks(count: int, width: int) -> list[Layer]:
    """Returns blocks that normalize before attention and before the feed-forward network."""
    block = [
        Layer([width, width]),
        _dense(width, 3 * width),
        _dense(width, width),
        Layer([width, width]),
        _dense(width, 4 * width),
        _dense(4 * width, width),
    ]
    return block * count


def _gpt2(blocks: int, width: int) -> list[Gradient]:
    words = 50257 * width
    layers = [Layer([words, 1024 * width]), *_blocks(blocks, width)]
    # The output matrix is the word embedding.
    return scaled([*layers, Layer([width, width]), Layer([], words)])


def _t5(blocks: int, width: int, inner: int, heads: int, key: int) -> list[Gradient]:
    words = 32128 * width
    attention, dense = heads * key * width, width * inner

    def attend(first: bool) -> list[Layer]:
        bias = [32 * heads] if first else []
        return [Layer([width]), *[Layer([attention], attention)] * 4, Layer(bias)]

    feed = [Layer([width]), Layer([dense], dense), Layer([dense], dense)]
    layers = [Layer([words])]
    for block in range(blocks):
        layers += attend(block == 0) + feed
    layers.append(Layer([width]))
    for block in range(blocks):
        layers += attend(block == 0) + attend(False) + feed
    return scaled([*layers, Layer([width]), Layer([], words)])


def _vit(blocks: int, width: int, patch: int) -> list[Gradient]:
    patches = (224 // patch) ** 2
    embed = 3 * patch * patch * width
    layers = [Layer([width]), Layer([(patches + 1) * width]), Layer([embed, width], embed)]
    layers += _blocks(blocks, width)
    # Only one of all tokens goes through the head.
    head = Layer([width * 1000, 1000], width * 1000 / (patches + 1))
    return scaled([*layers, Layer([width, width]), head])


def _llama2(blocks: int, width: int, inner: int) -> list[Gradient]:
    words = 32000 * width
    layers = [Layer([words])]
    for _ in range(blocks):
        layers.append(Layer([width]))
        layers += [Layer([width * width], width * width)] * 4
        layers.append(Layer([width]))
        layers += [Layer([width * inner], width * inner)] * 3
    return scaled([*layers, Layer([width]), Layer([words], words)])


_HE = "He et al., Deep residual learning, 2016; 1000 classes, stride in the 3 x 3 convolutions"
_DEVLIN = "Devlin et al., BERT, 2018; pre-training heads, vocabulary padded to 30528 words"
_RADFORD = "Radford et al., Language models are unsupervised multitask learners, 2019"
_RAFFEL = "Raffel et al., Exploring the limits of transfer learning, 2020"
_VIT = "Dosovitskiy et al., An image is worth 16 x 16 words, 2021; 224 x 224 pixels, 1000 classes"

#: Models by name.
MODELS: dict[str, Entry] = {
    "resnet-50": Entry(25_557_032, _HE, functools.partial(_resnet, (3, 4, 6, 3))),
    "resnet-101": Entry(44_549_160, _HE, functools.partial(_resnet, (3, 4, 23, 3))),
    "resnet-152": Entry(60_192_808, _HE, functools.partial(_resnet, (3, 8, 36, 3))),
    "googlenet": Entry(
        13_378_280,
        "Szegedy et al., Going deeper with convolutions, 2015; with both auxiliary classifiers",
        _googlenet,
    ),
    "vgg-16": Entry(
        138_357_544,
        "Simonyan and Zisserman, Very deep convolutional networks, 2015",
        functools.partial(_vgg, (2, 2, 3, 3, 3)),
    ),
    "vit-b-16": Entry(86_567_656, _VIT, functools.partial(_vit, 12, 768, 16)),
    "vit-l-16": Entry(304_326_632, _VIT, functools.partial(_vit, 24, 1024, 16)),
    "bert-base": Entry(110_111_042, _DEVLIN, functools.partial(_bert, bert.Shape(12, 768))),
    "bert-large": Entry(336_232_258, _DEVLIN, functools.partial(_bert, bert.LARGE)),
    "gpt-2": Entry(124_439_808, _RADFORD, functools.partial(_gpt2, 12, 768)),
    "gpt-2-medium": Entry(354_823_168, _RADFORD, functools.partial(_gpt2, 24, 1024)),
    "gpt-2-large": Entry(774_030_080, _RADFORD, functools.partial(_gpt2, 36, 1280)),
    "gpt-2-xl": Entry(1_557_611_200, _RADFORD, functools.partial(_gpt2, 48, 1600)),
    "t5-small": Entry(60_506_624, _RAFFEL, functools.partial(_t5, 6, 512, 2048, 8, 64)),
    "t5-base": Entry(222_903_552, _RAFFEL, functools.partial(_t5, 12, 768, 3072, 12, 64)),
    "t5-large": Entry(737_668_096, _RAFFEL, functools.partial(_t5, 24, 1024, 4096, 16, 64)),
    "t5-3b": Entry(2_851_598_336, _RAFFEL, functools.partial(_t5, 24, 1024, 16384, 32, 128)),
    "llama-2-7b": Entry(
        6_738_415_616,
        "Touvron et al., Llama 2, 2023",
        functools.partial(_llama2, 32, 4096, 11008),
    ),
}
