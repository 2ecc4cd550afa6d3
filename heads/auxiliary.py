"""Losses beside the head's own, of later tokens or of the output embeddings: for training alone, what is
scored and sampled stays the head's distribution."""

import torch
import torch.nn as nn
from torch import Tensor

from .base import Targets, check_not_negative
from .objectives import SoftTargets
from .output import OutputHead, chunked_loss
from .projection import Projection


def upcoming(targets: Targets, shape: torch.Size, count: int) -> Tensor:
    """The next `count` tokens (B, T, count) of each position of `shape` (B, T) in a text from left to right;
    -1 behind the window's end and, at a position without a loss, everywhere."""
    y = targets.token.long()
    if targets.rows is not None:
        y = y.new_full((shape.numel(),), -1).index_copy(0, targets.rows.long(), y)
    y = y.view(shape)
    padded = nn.functional.pad(y, (0, count - 1), value=-1)
    return padded.unfold(1, count, 1).masked_fill(y[:, :, None] < 0, -1)


class Auxiliary(nn.Module):
    """Base of the losses beside a head's: a subclass gives `forward`. `weight` times its sum over the
    positions is added to the head's loss. ValueError for a weight that is negative or not finite."""

    looks_ahead = True  # at later tokens, which only a text from left to right has

    def __init__(self, vocab_size: int, width: int, weight: float):
        super().__init__()
        if type(weight) not in (int, float):
            raise ValueError(f"weight = {weight!r}: must be a number")
        check_not_negative(weight=weight)
        self.weight = weight

    def readout(self) -> list[nn.Parameter]:
        """Its parameters that are an output projection, which have the readout's learning rate."""
        return []

    def forward(
        self, hidden: Tensor, targets: Targets, head: OutputHead, noise: torch.Generator | None
    ) -> Tensor:
        """The sum in nats over the positions of hidden (B, T, C), which `head` has the loss `targets` of."""
        raise NotImplementedError


class MultiToken(Auxiliary):
    """L = weight / (tokens - 1) sum_{k=2}^{tokens} L_head(x_{t+k} | h_k) with h_k = h + A_k h: the output
    head, at contexts of their own, predicts each of the next `tokens`. L_head is its own loss of the true
    token alone, -log p of softmax.

    Each A_k is a linear map. The sources have a transformer block there; the first also tries linear maps.
    Its weight of the sum is `weight` = tokens - 1. ValueError for fewer than 2 tokens, or more than 16.
    Sources: Gloeckle et al. 2024, arXiv 2404.19737, eq. 2; the weight: DeepSeek-V3, arXiv 2412.19437, eq. 25.
    """

    def __init__(self, vocab_size: int, width: int, weight: float = 0.3, tokens: int = 2):
        super().__init__(vocab_size, width, weight)
        if not (isinstance(tokens, int) and 2 <= tokens <= 16):
            raise ValueError(f"tokens = {tokens}: the next 2 to 16 tokens can be predicted")
        maps = [nn.Linear(width, width, bias=False) for _ in range(tokens - 1)]
        for each in maps:
            nn.init.normal_(each.weight, std=0.02)
        self.maps = nn.ModuleList(maps)

    def forward(
        self, hidden: Tensor, targets: Targets, head: OutputHead, noise: torch.Generator | None
    ) -> Tensor:
        later = upcoming(targets, hidden.shape[:2], 1 + len(self.maps))
        contexts, following = [], []
        for k, each in enumerate(self.maps, 1):
            h = hidden[:, :-k].flatten(0, 1)
            contexts.append(h + each(h).to(h.dtype))
            following.append(later[:, :-k, k].flatten())
        token = torch.cat(following)
        # by weights, for to look for positions without a loss would mean to wait for a GPU
        to = Targets.single(token.clamp(min=0))._replace(weights=(token >= 0).float())
        loss, _ = head.loss(torch.cat(contexts), to, noise)
        return self.weight / len(self.maps) * loss


class TokenOrder(Auxiliary):
    """L = -weight sum_v q_v log softmax(g h U^T)_v: a projection U of its own ranks the tokens of the window
    by how soon they come, with q_v ~ e^-d, where v first comes d tokens after the next one.

    Tokens that come after the next 16, whose q is below 2e-7, are left out. Its gain g is the head's.
    Source: Zuhri, Fuadi and Aji 2025, arXiv 2508.19228, whose target is the softmax of window - d.
    """

    ahead = 16

    def __init__(self, vocab_size: int, width: int, weight: float = 1.0):
        super().__init__(vocab_size, width, weight)
        self.projection = Projection(nn.Parameter(0.02 * torch.randn(vocab_size, width)), vocab_size, None)
        self.loss = SoftTargets(vocab_size)

    def readout(self) -> list[nn.Parameter]:
        return [self.projection.weight]

    def labels(self, ids: Tensor) -> Tensor:
        """q (N, 16), not normalised, of the next tokens `ids` (N, 16)."""
        before = torch.ones(self.ahead, self.ahead, dtype=torch.bool, device=ids.device).tril(-1)
        again = ((ids[:, :, None] == ids[:, None, :]) & before).any(2)
        distance = torch.arange(self.ahead, dtype=torch.float32, device=ids.device)
        return torch.exp(-distance).where((ids >= 0) & ~again, 0)

    def forward(
        self, hidden: Tensor, targets: Targets, head: OutputHead, noise: torch.Generator | None
    ) -> Tensor:
        if targets.ids.device.type == "cpu":
            targets = targets.kept()
        tokens = upcoming(targets, hidden.shape[:2], self.ahead).flatten(0, 1)
        hidden = hidden.flatten(0, 1)
        if targets.rows is not None:
            tokens, hidden = tokens[targets.rows], hidden[targets.rows]
        values, gain = self.labels(tokens), head.gain
        labels = Targets(tokens.masked_fill(values == 0, -1), values)  # each id once in a row
        # which trains with the distribution that is scored
        gain = gain.detach() if isinstance(gain, Tensor) else gain
        return self.weight * chunked_loss(hidden, self.projection.draw(), self.loss, labels, gain=gain)


class MuLoss(Auxiliary):
    """L = weight |mu|^2, mu the mean of the output projection's rows: what moves all logits alike, which no
    softmax sees, is kept from growing.

    Source: Stollenwerk, Lokrantz and Hertzberg 2026, arXiv 2601.02031.
    """

    looks_ahead = False

    def __init__(self, vocab_size: int, width: int, weight: float = 1e-4):
        super().__init__(vocab_size, width, weight)

    def forward(
        self, hidden: Tensor, targets: Targets, head: OutputHead, noise: torch.Generator | None
    ) -> Tensor:
        if targets.ids.device.type == "cpu":
            targets = targets.kept()
        mean = head.projection.weight[: head.head.vocab_size].mean(0)
        return self.weight * len(targets.ids) * mean.square().sum()


AUXILIARY: dict[str, type[Auxiliary]] = {
    "multi_token": MultiToken,
    "token_order": TokenOrder,
    "mu_loss": MuLoss,
}


def make_auxiliary(
    name: str, vocab_size: int, width: int, block_size: int, args: dict | None = None
) -> Auxiliary | None:
    """The loss called `name` in AUXILIARY, made with `args`; None for "". ValueError for an unknown loss or
    argument, and for tokens that no window of `block_size` holds."""
    known = ", ".join(AUXILIARY)
    if not name:
        if args:
            raise ValueError(
                f"auxiliary_args = {args} without auxiliary: leave it out, or use one of {known}"
            )
        return None
    if name not in AUXILIARY:
        raise ValueError(f"auxiliary = {name!r}: use one of {known}, or leave it out")
    try:
        made = AUXILIARY[name](vocab_size, width, **(args or {}))
    except TypeError as e:
        raise ValueError(f"auxiliary {name!r} does not take auxiliary_args = {args}: {e}") from None
    if isinstance(made, MultiToken) and len(made.maps) >= block_size:
        raise ValueError(f"tokens = {len(made.maps) + 1} with block_size = {block_size}: give fewer")
    return made
