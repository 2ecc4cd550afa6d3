"""Softmax that training sees a few tokens of: the true one, and others drawn by their frequency."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Targets, check_range
from .projection import Weights
from .softmax import Softmax


class SampledSoftmax(Softmax):
    """Softmax trained on the true token and `samples` others; scored and sampled with all.

    A step draws s_1 ... s_k from q, the frequencies of the train tokens, once for all positions.
    loss = -z_t + log(e^z_t + sum_i e^(z_s_i - log(k q(s_i)))), without the draws that are t. The sum over the
    draws has the expectation of that over all tokens but t, so a larger k comes nearer to softmax.

    Source: Bengio and Senecal 2008, IEEE TNN 19(4); the correction by log q as Jean et al. 2015,
    arXiv 1412.2007, eq. 9.
    """

    def __init__(self, vocab_size: int, samples: int = 512):
        super().__init__(vocab_size)
        check_range("[1, inf)", samples=samples)
        self.samples = samples
        self.log_q: Tensor  # (V,), of the train tokens: whoever trains sets it
        self.register_buffer("log_q", torch.full((vocab_size,), -math.log(vocab_size)), persistent=False)

    def sampled_loss(
        self, hidden: Tensor, weights: Weights, targets: Targets, generator: torch.Generator | None
    ) -> Tensor:
        """Sum of the losses of hidden states (N, C), which the gain has multiplied."""
        k, token, weight = self.samples, targets.token.long(), weights.weight
        work = torch.promote_types(hidden.dtype, torch.float32)
        drawn = torch.multinomial(self.log_q.exp(), k, replacement=True, generator=generator)
        others = (hidden @ F.embedding(drawn, weight).t()).to(work)  # (N, k)
        others = others - (self.log_q[drawn] + math.log(k))
        others = others.masked_fill(drawn == token[:, None], -math.inf)
        true = (hidden * F.embedding(token, weight)).sum(1, dtype=work)
        loss = torch.logaddexp(true, others.logsumexp(1)) - true
        return (loss if targets.weights is None else loss * targets.weights).sum()
