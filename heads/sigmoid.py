"""The multi-label sigmoid."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Head, Targets, finds_gradient, sum_log1m


class Sigmoid(Head):
    """Multi-label sigmoid: L = sum_v BCE(sigma(z_v), y_v); p = sigma(z) / sum sigma(z).

    With the sparse positives S, their weight w (`pos_weight`) and lambda (`sum_weight`):

        L = sum_v softplus(z_v) + sum_{j in S} y_j (w softplus(-z_j) - softplus(z_j))
            + lambda (sum_v sigma(z_v) - 1)^2

    The bias starts at log(w/V), where each sigma(z_v) is best if every token is equally likely.
    Source: Shamula et al. 2024, eq. 3 to 5. Theirs is a mean over v, ours a sum: only the scale differs.
    Eq. 4 is taken of probabilities.
    """

    multi_label = True

    def __init__(self, vocab_size: int, pos_weight: float = 1.0, sum_weight: float = 0.0):
        super().__init__(vocab_size)
        if not 0 < pos_weight < math.inf:
            raise ValueError(f"pos_weight = {pos_weight}: must be positive and finite")
        if not 0 <= sum_weight < math.inf:
            raise ValueError(f"sum_weight = {sum_weight}: must be at least 0 and finite")
        self.pos_weight, self.sum_weight = pos_weight, sum_weight
        self.bias = math.log(pos_weight / vocab_size)

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return binary_cross_entropy(logits, targets, self.pos_weight, self.sum_weight)

    def in_place(self, logits: Tensor, targets: Targets) -> Tensor:
        return binary_cross_entropy_into(logits, logits, targets, self.pos_weight, self.sum_weight)

    def log_probs(self, logits: Tensor) -> Tensor:
        return F.log_softmax(F.logsigmoid(logits), dim=-1)


@finds_gradient
def _binary_cross_entropy(
    z: Tensor, targets: Targets, pos_weight: float, sum_weight: float
) -> tuple[Tensor, Tensor]:
    grad = torch.empty_like(z)
    return binary_cross_entropy_into(grad, z, targets, pos_weight, sum_weight), grad


def binary_cross_entropy_into(
    grad: Tensor, z: Tensor, targets: Targets, pos_weight: float, sum_weight: float
) -> Tensor:
    """`binary_cross_entropy` (N,); its gradient goes to `grad` (N, V), which may be z itself."""
    at, values = targets.ids.clamp(min=0), targets.values  # the padding's values are 0
    z_at = z.gather(1, at)
    # a positive adds y (w softplus(-z) - softplus(z)) = y ((w - 1) softplus(-z) - z)
    positive, d_positive = -z_at, -values.to(z.dtype)
    if pos_weight != 1:
        positive = positive + (pos_weight - 1) * F.softplus(-z_at)
        d_positive = d_positive * (1 + (pos_weight - 1) * torch.sigmoid(-z_at))
    loss = z.relu().sum(1) + (values * positive).sum(1)
    d = torch.sigmoid(z, out=grad)
    # sum_v softplus(z_v) = sum_v max(z_v, 0) - log(1 - q_v) with q = sigma(-|z|)
    q = 1 - d
    loss -= sum_log1m(torch.minimum(d, q, out=q))
    if sum_weight:
        excess = d.sum(1, keepdim=True) - 1
        loss += sum_weight * excess.squeeze(1).square()
        d.addcmul_(d * (1 - d), 2 * sum_weight * excess)
    d.scatter_add_(1, at, d_positive)
    return loss


def binary_cross_entropy(
    z: Tensor, targets: Targets, pos_weight: float = 1.0, sum_weight: float = 0.0
) -> Tensor:
    """The loss (N,) of `Sigmoid` for logits z (N, V), differentiable in z."""
    return _binary_cross_entropy(z, targets, pos_weight, sum_weight)
