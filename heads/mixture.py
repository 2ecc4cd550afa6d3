"""A mixture of softmaxes: several distributions, each of a hidden state of its own."""

from collections.abc import Iterator

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .base import Head, Targets
from .chunked import chunk_rows
from .output import OutputHead
from .projection import Projection, Weights
from .softmax import Softmax


class MixtureHead(OutputHead):
    """p(v | h) = sum_k pi_k(h) p(v | h_k), K `components` of one head, each of the context
    h_k = tanh(A_k h + a_k), with pi = softmax(B h).

    The logits of one softmax have rank C at most over all contexts; log p of a mixture has no such bound.
    ValueError of a head whose loss is not softmax's, -log p_t, and of other than 2 to 64 components.
    Source: Yang et al. 2018, arXiv 1711.03953, section 2.4.
    """

    def __init__(self, components: int, head: Head, projection: Projection, gain: float, learn_gain: bool):
        super().__init__(head, projection, gain, learn_gain)
        if not 1 < components <= 64:
            raise ValueError(f"mixture = {components}: use 1 for no mixture, or 2 to 64 components")
        kind = type(head)
        if not isinstance(head, Softmax) or (kind.loss, kind.log_probs) != (Softmax.loss, Softmax.log_probs):
            raise ValueError(
                f"mixture = {components} of {kind.__name__}: only softmax and its links can be mixed, "
                "whose loss is -log p of the true token; use --mixture=1"
            )
        self.components, C = components, projection.weight.shape[1]
        contexts = [nn.Linear(C, C) for _ in range(components)]
        for each in contexts:
            nn.init.normal_(each.weight, std=C**-0.5)  # h_k is as large as h before the tanh
            nn.init.zeros_(each.bias)
        self.contexts = nn.ModuleList(contexts)
        self.prior = nn.Parameter(0.02 * torch.randn(components, C))

    def _split(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """hidden (N, C) -> the contexts (N * K, C), those of a position together, and log pi (N, K)."""
        contexts = torch.cat([each(hidden) for each in self.contexts], 1)
        contexts = torch.tanh(contexts).view(-1, hidden.shape[-1]).to(hidden.dtype)
        logits = F.linear(hidden, self.prior)
        return contexts, F.log_softmax(logits, 1, dtype=torch.promote_types(logits.dtype, torch.float32))

    def _total(self, hidden: Tensor, weights: Weights, targets: Targets) -> Tensor:
        """-sum_n w_n log sum_k pi_k p_k(t).

        With the responsibilities r_k = pi_k p_k(t) / sum_j pi_j p_j(t) as constants, it has the gradient of
        -sum_k r_k log(pi_k p_k(t)), so each component's loss has the weight r_k, and is less than that by the
        entropy of r: the E and the M step of EM (Neal & Hinton 1998).
        """
        if not len(hidden):
            return super()._total(hidden, weights, targets)
        contexts, log_prior = self._split(hidden)
        token = targets.token.repeat_interleave(self.components)
        w = 1 if targets.weights is None else targets.weights[:, None]
        with torch.no_grad():
            blocks = super().log_prob_blocks(contexts, [self.scored(weights, contexts.dtype)])
            log_p = torch.cat([log_p.gather(1, token[rows, None].long()) for rows, log_p in blocks])
            r = F.softmax(log_prior + log_p.view_as(log_prior), 1)  # (N, K)
            entropy = (w * torch.special.entr(r)).sum()
            r *= w
        parts = super()._total(contexts, weights, Targets.single(token)._replace(weights=r.flatten()))
        return parts - (r * log_prior).sum() - entropy

    def log_probs(self, hidden: Tensor, draws: list[Weights]) -> Tensor:
        contexts, log_prior = self._split(hidden)
        log_p = super().log_probs(contexts, draws).view(*log_prior.shape, -1)
        return torch.logsumexp(log_prior[:, :, None] + log_p, 1)

    def log_prob_blocks(self, hidden: Tensor, draws: list[Weights]) -> Iterator[tuple[slice, Tensor]]:
        rows = max(1, chunk_rows(self.head.vocab_size, hidden.device.type) // self.components)
        for start in range(0, len(hidden), rows):
            at = slice(start, min(start + rows, len(hidden)))
            yield at, self.log_probs(hidden[at], draws)
