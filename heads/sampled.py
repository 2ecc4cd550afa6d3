"""Softmax whose training sees a few tokens: the true one, and others drawn by their frequency."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Targets, check_range
from .projection import Weights
from .softmax import Softmax


class SampledSoftmax(Softmax):
    """Softmax trained on the true token t and some `samples` others; scored and sampled with all.

    A step draws a set S once for all positions: each token v with the probability pi_v, which is proportional
    to its frequency in the train tokens, but at most 1. loss = -z_t + log(e^z_t + sum e^(z_v - log pi_v)),
    over the v of S but t. The sum has the expectation of that over all tokens but t, so more samples come
    nearer to softmax, and V of them are softmax.

    Source: Bengio and Senecal 2008, IEEE TNN 19(4), importance sampling by frequency; the correction as Jean
    et al. 2015, arXiv 1412.2007, eq. 9. They draw tokens one by one and may draw one twice; a set in which
    each stands once has a smaller variance (Horvitz and Thompson 1952).

    bias  a trained output bias; with `unigram_bias` it starts at the log frequencies of the train tokens
    """

    def __init__(self, vocab_size: int, samples: int = 512, bias: bool = False):
        super().__init__(vocab_size)
        check_range("[1, inf)", samples=samples)
        self.samples, self.bias = samples, 0.0 if bias else None
        self.log_pi: Tensor  # (V,)
        uniform = torch.full((vocab_size,), math.log(min(1, samples / vocab_size)))
        self.register_buffer("log_pi", uniform, persistent=False)

    def use_frequencies(self, counts: Tensor) -> None:
        """Sets pi by the tokens' counts (V,), none of which is 0: whoever trains calls it."""
        q = counts.double() / counts.sum()
        pi = q * self.samples
        for _ in range(len(pi)):  # what is cut off at 1 goes to the others
            certain = pi >= 1
            if certain.all() or torch.allclose(pi.clamp(max=1).sum(), pi.new_tensor(self.samples)):
                break
            rest = (self.samples - certain.sum()).clamp(min=0) / q[~certain].sum()
            pi = torch.where(certain, 1, q * rest)
        self.log_pi.copy_(pi.clamp(max=1).log())

    def sampled_loss(
        self, hidden: Tensor, weights: Weights, targets: Targets, generator: torch.Generator
    ) -> Tensor:
        """Sum of the losses of hidden states (N, C), already multiplied by the gain."""
        token, weight, log_pi = targets.token.long(), weights.weight, self.log_pi
        bias = log_pi.new_zeros(1).expand(len(log_pi)) if weights.bias is None else weights.bias
        work = torch.promote_types(hidden.dtype, torch.float32)
        chance = torch.rand(len(log_pi), device=log_pi.device, generator=generator)
        drawn = (chance.log() < log_pi).nonzero().squeeze(1)
        others = (hidden @ F.embedding(drawn, weight).t()).to(work) + (bias - log_pi)[drawn]  # (N, |S|)
        others = others.masked_fill(drawn == token[:, None], -math.inf)
        true = (hidden * F.embedding(token, weight)).sum(1, dtype=work) + bias[token]
        loss = torch.logaddexp(true, others.logsumexp(1)) - true
        return (loss if targets.weights is None else loss * targets.weights).sum()
