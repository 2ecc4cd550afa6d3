"""The multi-label sigmoid."""

import math

import torch.nn.functional as F
from torch import Tensor

from .base import Head, Targets, check_not_negative, check_positive


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
        check_positive(pos_weight=pos_weight)
        check_not_negative(sum_weight=sum_weight)
        self.pos_weight, self.sum_weight = pos_weight, sum_weight
        self.bias = math.log(pos_weight / vocab_size)

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        z = logits.gather(1, targets.ids.clamp(min=0))  # (N, K) of S; the padding's labels are 0
        positives = targets.values * (F.logsigmoid(-z) - self.pos_weight * F.logsigmoid(z))
        loss = positives.sum(1) - F.logsigmoid(-logits).sum(1)
        return loss + self.sum_weight * (logits.sigmoid().sum(1) - 1).square()

    def log_probs(self, logits: Tensor) -> Tensor:
        return F.log_softmax(F.logsigmoid(logits), dim=-1)
