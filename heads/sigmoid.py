"""The multi-label sigmoid."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Gradient, Head, Targets, check_range
from .perturb import sum_log1m


class Sigmoid(Head):
    """Multi-label sigmoid: L = sum_v BCE(sigma(z_v), y_v); p = sigma(z) / sum sigma(z).

    With the sparse positives S, their weight w (`pos_weight`) and lambda (`sum_weight`):

        L = sum_v softplus(z_v) + sum_{j in S} y_j (w softplus(-z_j) - softplus(z_j))
            + lambda (sum_v sigma(z_v) - 1)^2

    The bias starts at log(w/V), where each sigma(z_v) is best if every token is equally likely.
    Source: Shamula et al. 2024, eq. 3 to 5. Theirs is a mean over v, ours a sum: only the scale differs.
    Their sum of eq. 4 is lambda's: it adds up probabilities.
    """

    multi_label = True

    def __init__(self, vocab_size: int, pos_weight: float = 1.0, sum_weight: float = 0.0):
        super().__init__(vocab_size)
        check_range("(0, inf)", pos_weight=pos_weight)
        check_range("[0, inf)", sum_weight=sum_weight)
        self.pos_weight, self.sum_weight = pos_weight, sum_weight
        self.bias = math.log(pos_weight / vocab_size)

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        z = logits.gather(1, targets.ids.clamp(min=0))  # (N, K) of S; the padding's labels are 0
        z = z.masked_fill(targets.values == 0, 0)
        positives = targets.values * (F.logsigmoid(-z) - self.pos_weight * F.logsigmoid(z))
        loss = positives.sum(1) - F.logsigmoid(-logits).sum(1)
        return loss + self.sum_weight * (logits.sigmoid().sum(1) - 1).square()

    def gradient(self, logits: Tensor, targets: Targets) -> Gradient:
        """One sigmoid a logit, by two identities:

        sum_v softplus(z_v)              = sum_v max(z_v, 0) - log(1 - q_v) with q = sigma(-|z|)
        w softplus(-z_j) - softplus(z_j) = (w - 1) softplus(-z_j) - z_j
        """
        ids, values = targets.ids.clamp(min=0), targets.values  # the padding's values are 0
        z_at = logits.gather(1, ids).masked_fill(values == 0, 0)
        positive, d_positive = -z_at, -values.to(logits.dtype)
        if self.pos_weight != 1:
            positive = positive + (self.pos_weight - 1) * F.softplus(-z_at)
            d_positive = d_positive * (1 + (self.pos_weight - 1) * torch.sigmoid(-z_at))
        if torch.compiler.is_compiling():
            loss, d = F.softplus(logits).sum(1) + (values * positive).sum(1), torch.sigmoid(logits)
        else:
            loss = logits.relu().sum(1) + (values * positive).sum(1)
            d = torch.sigmoid(logits, out=logits)
            q = 1 - d
            loss -= sum_log1m(torch.minimum(d, q, out=q))
        if self.sum_weight:
            excess = d.sum(1, keepdim=True) - 1
            loss += self.sum_weight * excess.squeeze(1).square()
            d.addcmul_(d * (1 - d), 2 * self.sum_weight * excess)
        return loss, d, d.gather(1, ids) + d_positive

    def log_probs(self, logits: Tensor) -> Tensor:
        return F.log_softmax(F.logsigmoid(logits), dim=-1)
