"""A convolutional network as a trunk: images -> hidden states, made from a line of text.

The line is in the notation of Banerjee et al. 2021, table 1, with the activations said as well:

    Conv[3x3,64]       3 x 3 convolution to 64 channels, stride 1, as large as its input
    MaxPool[2x2,2]     over 2 x 2 pixels, stride 2; [2x2,2,same] also over what is left at the border
    FC[256]            linear, to 256 numbers
    BN                 batch normalisation, with Keras' momentum .99 and epsilon .001
    ReLU, ELU, PReLU   activations
    Dropout[0.2], DO   dropout; DO drops half
    Pad[4]             4 pixels of zeros on all sides
    {Conv[3x3,64] ReLU}x4      four times

The last FC of the document, to the classes, is the output head's projection.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn as nn
from torch import Tensor
from torch.nn import init

from common.errors import UserError
from model import GPTConfig, Trunk

ITEM = re.compile(
    r"\{(?P<group>[^{}]*)\}x(?P<times>\d{1,3})(?!\d)|(?P<name>[A-Za-z]+)(\[(?P<values>[^\[\]{}]*)\])?"
)
MOST = 200  # layers
USUAL = "Conv[3x3,32] ReLU MaxPool[2x2,2] FC[64] ReLU"  # where no layers are given


class Item(NamedTuple):
    """A layer, as it was written."""

    name: str
    values: list[str]

    def __str__(self) -> str:
        return self.name + (f"[{','.join(self.values)}]" if self.values else "")


def items(text: str) -> Iterator[Item]:
    """The layers of a line, groups repeated. ValueError naming what is no layer."""
    parts, at = [], 0
    for match in ITEM.finditer(text):
        if text[at : match.start()].strip(" ,\n"):
            break
        parts.append(match)
        at = match.end()
    if rest := text[at:].strip(" ,\n"):
        raise ValueError(f"layers: {rest!r} is no layer: write it as Conv[3x3,64] or {{Conv[3x3,64] ReLU}}x2")
    for match in parts:
        if match["group"] is not None:
            for _ in range(int(match["times"])):
                yield from items(match["group"])
        else:
            yield Item(match["name"], match["values"].split(",") if match["values"] else [])


class Shape(NamedTuple):
    """Shape of a layer's output: an image or, if it is `flat`, just `channels` numbers."""

    channels: int
    height: int = 1
    width: int = 1
    flat: bool = False

    @property
    def numbers(self) -> int:
        return self.channels * self.height * self.width


class CNN(Trunk):
    """Images (B, channels, height, width), uint8, -> hidden states (B, 1, C): one position an image.

    `shape`: channels, height and width of the images. `he`: see `initialise`. ValueError if the layers do not
    fit the images, or end with other than n_embd numbers.
    """

    def __init__(self, config: GPTConfig, layers: str, shape: list[int], he: bool = False):
        super().__init__()
        made, widest, last = network(layers, shape)
        if last != config.n_embd:
            raise ValueError(f"layers: they end with {last} numbers, n_embd = {config.n_embd}")
        self.config, self.layers, self.widest = config, made, widest
        initialise(self, he)

    def new_readout(self) -> nn.Parameter:
        """Glorot's, as of the layers before it: with the N(0, .02^2) of a language model's embedding its
        logits would be a fourth as large at the start."""
        c = self.config
        weight = nn.Parameter(torch.zeros(c.padded_vocab, c.n_embd))
        init.xavier_uniform_(weight[: c.vocab_size].detach())
        return weight

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        if tokens.dim() != 4:
            raise UserError("trunk = 'cnn' reads images, and this dataset has tokens: choose trunk = 'gpt'")
        # a CPU convolves a quarter faster where the channels of a pixel lie together
        pixels = tokens.float().contiguous(memory_format=torch.channels_last) / 255
        return self.layers(pixels).flatten(1)[:, None]


def network(layers: str, shape: Sequence[int]) -> tuple[nn.Sequential, int, int]:
    """(the modules of a line, the most numbers of an image behind any of them, and behind the last) for
    images of `shape`. ValueError if they do not fit."""
    if not isinstance(layers, str) or [type(n) for n in shape] != [int] * 3 or min(shape) < 1:
        raise ValueError(f"layers = {layers!r} for images of {shape!r}: give a line of layers")
    made, now = nn.Sequential(), Shape(shape[0], shape[1], shape[2])
    widest = now.numbers
    for item in items(layers):
        if len(made) >= MOST:
            raise ValueError(f"layers: more than {MOST} of them")
        modules, now = layer(item, now)
        made.extend(modules)
        widest = max(widest, now.numbers)
    return made, widest, now.numbers


def width(layers: str, shape: Sequence[int]) -> int:
    """How many numbers the line `layers` makes of an image. ValueError if it is no network for `shape`."""
    with torch.device("meta"):
        return network(layers, shape)[2]


def layer(item: Item, shape: Shape) -> tuple[list[nn.Module], Shape]:
    """The modules of a layer for an input of this shape, and the shape of what they give."""
    try:
        made, now = LAYERS[item.name](shape, *item.values)
    except (KeyError, TypeError, ValueError, RuntimeError):  # other values than it takes, or than torch can
        raise ValueError(f"layers: {item} is none of {', '.join(LAYERS)} with its values") from None
    if now.numbers < 1 or (shape.flat and item.name in ("Conv", "MaxPool", "Pad")):
        raise ValueError(f"layers: {item} does not fit an image of {shape.height} x {shape.width}")
    return made, now


# -----------------------------------------------------------------------------
# Layers: the shape before and the values in brackets -> modules and the shape behind them

Made = tuple[list[nn.Module], Shape]


def positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def kernel(text: str) -> tuple[int, int]:
    height, width = text.split("x")
    return positive(height), positive(width)


def conv(shape: Shape, size: str, channels: str) -> Made:
    (height, width), out = kernel(size), positive(channels)
    now = shape._replace(channels=out)
    if height % 2 and width % 2:
        return [nn.Conv2d(shape.channels, out, (height, width), padding=(height // 2, width // 2))], now
    # an even kernel reaches one pixel further to the right and downwards, as in Keras
    border = nn.ZeroPad2d(((width - 1) // 2, width // 2, (height - 1) // 2, height // 2))
    return [border, nn.Conv2d(shape.channels, out, (height, width))], now


def max_pool(shape: Shape, size: str, stride: str, border: str = "") -> Made:
    if border not in ("", "same"):
        raise ValueError(border)
    (height, width), step, whole = kernel(size), positive(stride), border == "same"

    def windows(pixels: int, over: int) -> int:
        count = max(0, (pixels - over + (step - 1) * whole) // step + 1)
        return min(count, -(-pixels // step))  # none begins behind the image, see ceil_mode

    places = windows(shape.height, height), windows(shape.width, width)
    return [nn.MaxPool2d((height, width), step, ceil_mode=whole)], Shape(shape.channels, *places)


def fc(shape: Shape, numbers: str) -> Made:
    n = positive(numbers)
    return [nn.Flatten(), nn.Linear(shape.numbers, n)], Shape(n, flat=True)


def batch_norm(shape: Shape) -> Made:
    made = (nn.BatchNorm1d if shape.flat else nn.BatchNorm2d)(shape.channels, eps=1e-3, momentum=0.01)
    made.num_batches_tracked = None  # which only a momentum of None needs
    return [made], shape


def dropout(shape: Shape, rate: str = "0.5") -> Made:
    if not 0 <= float(rate) < 1:
        raise ValueError(rate)
    return [nn.Dropout(float(rate))], shape


def pad(shape: Shape, pixels: str) -> Made:
    n = positive(pixels)
    return [nn.ZeroPad2d(n)], Shape(shape.channels, shape.height + 2 * n, shape.width + 2 * n)


def activation(kind: type[nn.Module]) -> Callable[..., Made]:
    return lambda shape: ([kind()], shape)


LAYERS: dict[str, Callable[..., Made]] = {
    "Conv": conv,
    "MaxPool": max_pool,
    "FC": fc,
    "BN": batch_norm,
    "ReLU": activation(nn.ReLU),
    "ELU": activation(nn.ELU),
    "PReLU": activation(nn.PReLU),
    "Dropout": dropout,
    "DO": dropout,
    "Pad": pad,
}


# -----------------------------------------------------------------------------
# Initial weights


def initialise(trunk: nn.Module, he: bool = False) -> None:
    """Uniform weights as Keras', Glorot's or He's, and zero biases.

    Sources: Glorot & Bengio 2010, eq. 16; He et al. 2015, eq. 10.
    """
    for module in trunk.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            if he:
                init.kaiming_uniform_(module.weight, nonlinearity="relu")
            else:
                init.xavier_uniform_(module.weight)
            assert module.bias is not None
            init.zeros_(module.bias)


TRUNKS = {"cnn": CNN}
