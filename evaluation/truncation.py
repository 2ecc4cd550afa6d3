"""From a next-token distribution to the one that a token is drawn from: a temperature, the cuts of cuts.py in
their order, and penalties on what is written."""

import torch
from torch import Tensor

from evaluation.cuts import COLD_CUTS, CUTS
from evaluation.decoding import AS_SCORED, Decoding, Penalties
from runtime.errors import UserError


def truncate(log_p: Tensor, c: Decoding) -> Tensor:
    """log p (N, V) -> probabilities (N, V) at the temperature tau, p^(1/tau) normalised, then cut.

    COLD_CUTS are first, since no temperature changes them; then the temperature; then CUTS. Temperature 0 is
    all mass on the most probable token.
    """
    if c.temperature == 0:
        return torch.zeros_like(log_p).scatter_(1, log_p.argmax(1, keepdim=True), 1.0)
    for name, cut in COLD_CUTS.items():
        if value := getattr(c, name):
            log_p = log_p.masked_fill(~cut(log_p, value), -torch.inf)
    # from the maximum, so that nothing overflows; below 1e-30 it is greedy in float32 anyhow
    p = torch.softmax((log_p - log_p.max(1, keepdim=True).values) / max(c.temperature, 1e-30), dim=-1)
    for name, cut in CUTS.items():
        value = getattr(c, name)
        if value != getattr(AS_SCORED, name):
            p = p.masked_fill(~cut(p, value), 0)
    return p / p.sum(1, keepdim=True)


# -----------------------------------------------------------------------------
# Penalties on what is written


def penalised(log_p: Tensor, text: Tensor, new: int, c: Penalties) -> Tensor:
    """log p (B, V), no longer normalised, after `text` (B, T), whose last `new` tokens are no prompt's.

    repetition  log p <- penalty log p, of the tokens in text (Keskar et al. 2019, arXiv 1909.05858, sec. 4.1,
                on log p in place of logits: all heads have it, and it does not depend on a constant)
    frequency, presence  log p <- log p - frequency n - presence [n > 0], n how often the new text has a token
                (the definition of OpenAI's API)
    no_repeat_ngram  log p <- -inf where n tokens of the text would come again (Paulus et al. 2017, arXiv
                1705.04304, sec. 2.5)
    dry         log p <- log p - multiplier base^(n - allowed) where n >= allowed tokens of the text and this
                one would come again (p-e-w 2024, oobabooga/text-generation-webui#5677, without its breakers)
    """
    if c.repetition_penalty != 1:
        seen = torch.zeros_like(log_p, dtype=torch.bool).scatter_(1, text, True)
        log_p = torch.where(seen, log_p * c.repetition_penalty, log_p)
    if c.frequency_penalty or c.presence_penalty:
        written = text[:, text.shape[1] - new :]
        n = torch.zeros_like(log_p).scatter_add_(1, written, torch.ones_like(written, dtype=log_p.dtype))
        log_p = log_p - c.frequency_penalty * n - c.presence_penalty * (n > 0)
    if c.dry_multiplier:
        beyond = repeated(text) - c.dry_allowed_length
        price = (c.dry_multiplier * c.dry_base ** beyond.to(log_p)).clamp(max=1e30) * (beyond >= 0)
        log_p = log_p - torch.zeros_like(log_p).scatter_reduce_(1, text, price, "amax")
    if 0 < c.no_repeat_ngram <= text.shape[1]:
        start = text[:, text.shape[1] - c.no_repeat_ngram + 1 :]
        ngrams = text.unfold(1, c.no_repeat_ngram, 1)  # (B, T - n + 1, n)
        again = (ngrams[..., :-1] == start[:, None]).all(2)
        ends = torch.where(again, ngrams[..., -1], log_p.shape[1])  # a column more for those that differ
        banned = log_p.new_zeros((len(log_p), log_p.shape[1] + 1), dtype=torch.bool).scatter_(1, ends, True)
        log_p = log_p.masked_fill(banned[:, :-1], -torch.inf)
    return log_p


def check_left(log_p: Tensor, c: Penalties) -> None:
    """UserError if no_repeat_ngram leaves a row of log p (B, V) without a token."""
    if c.no_repeat_ngram and not log_p.isfinite().any(1).all():
        raise UserError(
            f"no_repeat_ngram = {c.no_repeat_ngram}: each token that is left would repeat "
            f"{c.no_repeat_ngram} tokens of the text; give a larger one or a smaller --length"
        )


def repeated(text: Tensor) -> Tensor:
    """How many tokens before each one of the text (B, T) are also the last ones of the text, (B, T)."""
    n, same = torch.zeros_like(text), torch.ones_like(text, dtype=torch.bool)
    for k in range(1, text.shape[1]):
        same[:, :k] = False  # there are not so many before
        same[:, k:] &= text[:, :-k] == text[:, -k, None]
        if not same.any():
            break
        n += same
    return n
