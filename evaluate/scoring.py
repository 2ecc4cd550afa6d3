"""Perplexity, done once for all heads: the NLL of the distribution that is sampled, every token scored
exactly once."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from common.device import autocast, to_float64
from data.batches import Batch
from evaluate.metrics import Calibration, perplexity
from heads import Targets, Weights
from model import LanguageModel
from training.run import Degenerate

# What the eps-perplexity (Martins et al. 2020, arXiv 2004.02644) adds to each token's probability before it
# normalises them. They tune it for each model; here all rows have the same one, so a token that a head rules
# out costs each of them the same 13.8 nats
EPSILON = 1e-6


class Score(NamedTuple):
    nll: float  # sum over tokens of -log p, nats; inf if a token has probability 0
    tokens: int  # how many were scored
    zeros: int  # how many of them have probability 0
    # sum over tokens of -log((p + EPSILON) / (1 + EPSILON V)), nats: finite for heads with exact zeros, too
    eps_nll: float
    part: int = 0  # how many windows of the text were scored; 0: all

    @property
    def mean(self) -> float:
        """Nats a token."""
        return self.nll / self.tokens

    @property
    def eps_mean(self) -> float:
        """The log of PPL_eps: nats a token."""
        return self.eps_nll / self.tokens


def with_epsilon(log_p: Tensor, vocab_size: int) -> Tensor:
    """log((p + EPSILON) / (1 + EPSILON V)) of log p, in any shape."""
    return ((log_p.exp() + EPSILON) / (1 + EPSILON * vocab_size)).log()


class ScoringPlan(NamedTuple):
    """How a text is scored. A lab's trunk that does not read from left to right has a plan of its own."""

    windows: list
    read: Callable[[list], Batch]  # some of the windows -> what the trunk reads and is to predict


@torch.no_grad()
def score(
    model: LanguageModel,
    text: np.ndarray | ScoringPlan,
    stride: int = 0,
    draws: list[Weights] | None = None,
    device: torch.device | str = "cpu",
    dtype: str = "float32",
    batch: int = 16,
    each: Callable[[Tensor, Tensor], None] | None = None,
    progress: Callable[[Iterable], Iterable] = iter,
    share: slice = slice(None),
    part: int = 0,
    context: int = 0,
) -> Score:
    """NLL of a text under the model's predictive distribution, each token scored once.

    The model must be in eval mode. Log-probabilities are float32, whatever `dtype` the matrix products have.
    A token of probability 0 makes the NLL inf and is counted; nothing is clamped. ValueError if p of the
    first rows does not sum to 1.

    text     ids (T,), of which T - 1 are scored from left to right; or a plan
    stride   tokens between two windows of ids; 0: min(512, context)
    draws    see OutputHead.draws; None: one
    batch    windows at a time
    each     called with log p (n, V) and the targets (n,) of each block: a TemperedCalibration
    share    which of the chosen windows, for one of several processes
    part     how many windows, see `evenly_spread`; 0: all
    context  of ids: the most tokens that a window reads; 0: as many as the model can
    """
    draws = draws if draws is not None else model.head.draws(1, 0)
    if not isinstance(text, ScoringPlan):
        text = left_to_right(text, min(context or model.trunk.context, model.trunk.context), stride)
    whole, read = text
    chosen = evenly_spread(whole, part)
    mine = chosen[share]
    V = model.head.head.vocab_size
    nll, eps_nll, count, zeros = 0.0, 0.0, 0.0, 0
    for i in progress(range(0, len(mine), batch)):
        tokens, targets, positions = read(mine[i : i + batch]).moved(lambda t: t.to(device))
        target = targets.token  # (N,)
        lp_t = torch.empty(len(target), device=device)
        with autocast(device, dtype):
            hidden = model.trunk(tokens, positions).flatten(0, 1)
            hidden = hidden if targets.rows is None else hidden[targets.rows]  # (N, C)
            for rows, lp in model.head.log_prob_blocks(hidden, draws):
                if i == rows.start == 0:
                    check_normalised(lp)
                t = target[rows]
                lp_t[rows] = lp.gather(1, t[:, None]).squeeze(1)
                if each:
                    each(lp, t)
        lp_t = to_float64(lp_t)
        zeros += int((lp_t == -math.inf).sum())
        w = torch.ones_like(lp_t) if targets.weights is None else to_float64(targets.weights)
        nll, eps_nll = nll - (w * lp_t).sum().item(), eps_nll - (w * with_epsilon(lp_t, V)).sum().item()
        count += w.sum().item()
    return Score(nll, round(count), zeros, eps_nll, len(chosen) if len(chosen) < len(whole) else 0)


def check_normalised(log_p: Tensor) -> None:
    """ValueError if the probabilities of a row of log p (n, V) do not sum to 1: a mistake in the head's
    `log_probs`, whose perplexity would mean nothing."""
    off = log_p.logsumexp(1).abs().max().item()
    if off > 1e-3:
        raise ValueError(f"log_probs is not normalised: log of a row's sum of p is {off:.3g} from 0")


def windows(count: int, block_size: int, stride: int) -> list[tuple[int, int]]:
    """(start, first) of each window over `count` tokens: inputs start..start+block_size-1; targets are scored
    from offset `first` on.

    Windows advance by `stride`; the last is moved back to end with the text, so that all are whole. Tokens
    1..count-1 are scored once each.
    """
    out, done, last = [], 0, max(0, count - 1 - block_size)
    for start in range(0, count - 1, stride):
        start = min(start, last)
        out.append((start, done - start))
        done = min(start + block_size, count - 1)
        if start == last:
            break
    return out


def evenly_spread(plan: list, count: int) -> list:
    """`count` of the windows `plan`, evenly spread over the text and always the same; all of them if `count`
    is 0 or too many."""
    n = len(plan)
    return [plan[(2 * i + 1) * n // (2 * count)] for i in range(count)] if 0 < count < n else plan


def left_to_right(ids: np.ndarray, context: int, stride: int = 0) -> ScoringPlan:
    """The windows of a text from left to right, each token scored once."""
    T = min(context, len(ids) - 1)
    plan = windows(len(ids), context, stride or min(512, context))

    def read(part: list[tuple[int, int]]) -> Batch:
        tokens = torch.from_numpy(np.stack([ids[s : s + T + 1] for s, _ in part]).astype(np.int64))
        scored = torch.stack([torch.arange(T) >= first for _, first in part])
        return next_tokens(tokens, scored)

    return ScoringPlan(plan, read)


def in_sequences(ids: np.ndarray, T: int, given: int) -> ScoringPlan:
    """The sequences of a text, each of T tokens of which the first `given` are never predicted."""

    def read(part: list[int]) -> Batch:
        x = torch.from_numpy(np.stack([ids[n * T : n * T + T] for n in part]).astype(np.int64))
        return next_tokens(x, (torch.arange(1, T) >= given).expand(len(x), -1))

    return ScoringPlan(list(range(len(ids) // T)), read)


def next_tokens(tokens: Tensor, scored: Tensor) -> Batch:
    """Windows (B, T + 1) of which each token predicts the next one, where that is `scored` (B, T)."""
    return Batch(tokens[:, :-1], Targets.single(tokens[:, 1:]).kept(scored))


# -----------------------------------------------------------------------------
# Calibration: of the distribution as it is, and after one temperature that is fitted to it. A head that
# only spreads or sharpens its probabilities differs from softmax by a temperature; what is left after the
# fit is in the ranking of the tokens (Guo et al. 2017, arXiv 1706.04599, section 4.2)

TEMPERATURES: list[float] = (2.0 ** np.arange(-3, 3.1, 0.25)).tolist()  # 1/8 to 8
FITTED_TO = 16_384  # tokens: the mean NLL of so many is flat at its lowest to far less than the ECE's digits


class TemperedCalibration:
    """Sums over whole distributions, block by block: `score(..., each=TemperedCalibration(temperature))`.

    Those of p and, at a `temperature`, those of p^(1/temperature), normalised. The sparsemax score of a token
    t is p_t + (1 - sum_v p_v^2) / 2. Source: Martins et al. 2020, arXiv 2004.02644.
    """

    def __init__(self, temperature: float | None = None):
        self.temperature, self.tokens, self.sparsemax, self.fitted_nll = temperature, 0, 0.0, 0.0
        self.plain, self.fitted = Calibration(), Calibration()

    def __call__(self, log_p: Tensor, target: Tensor) -> None:
        """Adds n positions: log p (n, V), and the tokens (n,) that came. Degenerate if a log p is nan."""
        top, arg = log_p.max(1)
        if top.isnan().any():
            raise Degenerate("its log-probabilities are not numbers")
        right, log_p_t = (arg == target).cpu().numpy(), log_p.gather(1, target[:, None]).squeeze(1)
        self.tokens += len(target)
        self.sparsemax += (log_p_t.exp() + (1 - (2 * log_p).exp().sum(1)) / 2).sum().item()
        self.plain.add(top.exp().cpu().numpy(), right)
        if self.temperature is None:
            return
        norm = (log_p / self.temperature).logsumexp(1)
        self.fitted.add((top / self.temperature - norm).exp().cpu().numpy(), right)
        fitted_t = to_float64(log_p_t / self.temperature - norm)
        self.fitted_nll -= with_epsilon(fitted_t, log_p.shape[1]).sum().item()

    def numbers(self) -> dict[str, float]:
        """The columns of a table."""
        numbers = {"ece": self.plain.ece(), "sparsemax_score": self.sparsemax / self.tokens}
        if self.temperature is None:
            return numbers
        return numbers | {
            "fitted_temperature": self.temperature,
            "ece_fitted": self.fitted.ece(),
            "ppl_fitted": perplexity(self.fitted_nll, self.tokens),
        }


def fit_temperature(
    model: LanguageModel,
    ids: np.ndarray,
    draws: list[Weights],
    device: torch.device | str = "cpu",
    dtype: str = "float32",
    context: int = 0,
) -> float:
    """The temperature tau at which p^(1/tau) has the lowest PPL_eps on windows that are spread over the text
    `ids` (T,), of `context` tokens each (0: as many as the model reads).

    The best of TEMPERATURES, for heads with exact zeros may have several minima; then twice the best of 25
    between its neighbours, which is within 0.1% of the lowest. A pass over the text scores many temperatures.
    """
    context = context or model.trunk.context
    part = -(-FITTED_TO // context)

    def nll_at(temperatures: Sequence[float]) -> Tensor:
        nll = torch.zeros(len(temperatures), dtype=torch.float64)

        def add(log_p: Tensor, target: Tensor) -> None:
            log_p_t = log_p.gather(1, target[:, None]).squeeze(1)
            for k, tau in enumerate(temperatures):
                fitted_t = to_float64(log_p_t / tau - (log_p / tau).logsumexp(1))
                nll[k] -= with_epsilon(fitted_t, log_p.shape[1]).sum().cpu()

        score(model, ids, context, draws, device, dtype, each=add, part=part, context=context)
        return nll

    grid = np.log(TEMPERATURES)
    for finer in (True, True, False):
        best = int(nll_at(np.exp(grid).tolist()).argmin())
        if finer:
            grid = np.linspace(grid[max(0, best - 1)], grid[min(best + 1, len(grid) - 1)], 25)
    return math.exp(grid[best])
