"""Projections: hidden states (N, C) -> logits (N, V), with weights that are points or have a distribution."""

import math
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .base import Head, check_range


class Weights(NamedTuple):
    """One draw of a projection's weights: `weight` (padded V, C) and `bias` (V,) or None."""

    weight: Tensor
    bias: Tensor | None


class Projection(nn.Module):
    """z = h W^T + b. W (padded V, C) is the token embedding (Press & Wolf 2017, arXiv 1608.05859) or, untied,
    `Trunk.new_readout`'s. `bias` is the initial value of b (V,); None: there is no b."""

    def __init__(self, weight: nn.Parameter, vocab_size: int, bias: float | None):
        super().__init__()
        self.weight, self.vocab_size = weight, vocab_size
        self.bias = None if bias is None else nn.Parameter(torch.full((vocab_size,), bias))

    def draw(self, generator: torch.Generator | None = None) -> Weights:
        """The weights; a draw of them, if they have a distribution."""
        return Weights(self.weight, self.bias)

    def kl(self) -> Tensor | None:
        """KL(q || prior) of the weights in nats; None where the weights have no distribution."""
        return None

    def with_prior(self) -> list[nn.Parameter]:
        """The parameters that the KL pulls to their prior, so that weight decay need not."""
        return []


class BayesianProjection(Projection):
    """W ~ N(mu, sigma^2) for each weight, mu tied to the token embedding, prior N(0, prior_sigma^2). The bias
    is a point.

    The parameters are torchbnn's. The noise is drawn here, because torchbnn takes it from the global
    generator, and in eval() too; the KL is computed here, because torchbnn's counts padding rows.
    Source: Shamula et al. 2024, sec. 2.5; Blundell et al. 2015, arXiv 1505.05424.
    """

    def __init__(self, weight: nn.Parameter, vocab_size: int, bias: float | None, prior_sigma: float = 0.02):
        super().__init__(weight, vocab_size, bias)
        import torchbnn

        check_range("(0, inf)", prior_sigma=prior_sigma)
        self.bayes = torchbnn.BayesLinear(0.0, prior_sigma, weight.shape[1], weight.shape[0], bias=False)
        self.bayes.weight_mu = weight

    def draw(self, generator: torch.Generator | None = None) -> Weights:
        noise = torch.randn(self.weight.shape, generator=generator, device=self.weight.device)
        return Weights(self.weight + self.bayes.weight_log_sigma.exp() * noise, self.bias)

    def kl(self) -> Tensor:
        """Over the V rows of tokens: padding rows are no weights of the model."""
        layer = self.bayes
        mu, log_sigma = (t[: self.vocab_size] for t in (layer.weight_mu, layer.weight_log_sigma))
        square = (log_sigma.exp() ** 2 + (mu - layer.prior_mu) ** 2) / (
            2 * math.exp(layer.prior_log_sigma) ** 2
        )
        return (layer.prior_log_sigma - log_sigma + square - 0.5).sum()

    def with_prior(self) -> list[nn.Parameter]:
        return [self.weight, self.bayes.weight_log_sigma]


def unit(x: Tensor) -> Tensor:
    """Rows of length 1, in float32 at least: the products of two such are cosines."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


def reciprocal_lengths(x: Tensor) -> Tensor:
    """1 / |x_v| (V,) of the rows of x (V, C), in float32 at least: the factors that make them unit rows."""
    return x.norm(dim=1, dtype=torch.promote_types(x.dtype, torch.float32)).clamp_(min=1e-12).reciprocal_()


@torch.no_grad()
def remove_radial_(gradient: Tensor, x: Tensor, rows: int) -> None:
    """Makes each row of a `gradient` (V, C) orthogonal to that row of x (V, C), in place, `rows` at a time:
    the loss depends on the direction of a row of x, not on its length."""
    for g, w in zip(gradient.split(rows), x.split(rows)):
        w = unit(w)
        g -= w * (w * g).sum(1, keepdim=True)


def tell_scale(head: Head, gain: Tensor | float, width: int) -> None:
    """Sets `head.scale` to g sqrt(C), for a head whose p depends on it. ValueError if such a gain is to be
    learned."""
    if head.reads_scale:
        if isinstance(gain, Tensor) and gain.requires_grad:
            raise ValueError(
                f"the gain of {type(head).__name__} is its exponent and cannot be learned: fix it"
            )
        head.scale = float(gain) * math.sqrt(width)


def scale_hidden(hidden: Tensor, head: Head, gain: Tensor | float) -> Tensor:
    """g h, in h's precision, so that the products with the weights are g h W^T. A cosine head gets rows of
    length g sqrt(C), in float32 or wider."""
    if head.cosine:
        hidden = unit(hidden) * math.sqrt(hidden.shape[-1])
    if isinstance(gain, Tensor):
        return hidden * gain.to(hidden.dtype)
    return hidden if gain == 1 else hidden * gain


def project(
    hidden: Tensor,
    weights: Weights,
    head: Head,
    gain: Tensor | float = 1.0,
    added: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """hidden (N, C) -> float32 logits (N, V) of `head`, all at once. `added`: as `chunked_loss`'s."""
    weight = unit(weights.weight) if head.cosine else weights.weight
    hidden = scale_hidden(hidden, head, gain)
    products = hidden @ weight.to(hidden.dtype).t()
    if added is not None:
        products = products + (added[0] @ added[1].t()).to(products.dtype)
    return logits_of(products, weights, head.vocab_size)


def logits_of(products: Tensor, weights: Weights, vocab_size: int) -> Tensor:
    """h W^T (N, padded V) -> float32 logits (N, V): the padding rows of the weights are cut off here, so no
    head ever sees them."""
    logits = products[:, :vocab_size].to(torch.promote_types(products.dtype, torch.float32))
    return logits if weights.bias is None else logits + weights.bias.to(logits.dtype)
