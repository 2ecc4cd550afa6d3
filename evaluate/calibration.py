"""Calibration of a model's distribution: as it is, and after one temperature that is fitted to it.

A head that only spreads or sharpens its probabilities differs from softmax by a temperature; what is left
after the fit is in the ranking of the tokens (Guo et al. 2017, arXiv 1706.04599, section 4.2).
"""

import numpy as np
import torch
from torch import Tensor

from common.device import to_float64
from evaluate.metrics import Calibration, perplexity
from evaluate.scoring import score, with_epsilon
from heads import Weights
from model import LanguageModel
from training.run import Degenerate

TEMPERATURES = 2.0 ** (np.arange(-12, 13) / 4)  # 1/8 to 8
FITTED_TO = 16_384  # tokens: the mean NLL of so many is flat at its lowest to far less than the ECE's digits


class Calibrated:
    """Sums over whole distributions, block by block: `score(..., each=Calibrated(temperature))`.

    Those of p and, at a `temperature`, those of p^(1/temperature), normalised.
    """

    def __init__(self, temperature: float | None = None):
        self.temperature, self.tokens, self.sparsemax, self.fitted_nll = temperature, 0, 0.0, 0.0
        self.plain, self.fitted = Calibration(), Calibration()

    def __call__(self, log_p: Tensor, target: Tensor) -> None:
        """Adds log p (n, V) and the tokens (n,) that came. Degenerate if one is nan."""
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


def fitted_temperature(
    model: LanguageModel,
    ids: np.ndarray,
    draws: list[Weights],
    device: torch.device | str = "cpu",
    dtype: str = "float32",
    context: int = 0,
) -> float:
    """The temperature tau at which p^(1/tau) has the lowest PPL_eps on windows that are spread over the text
    `ids` (T,), of `context` tokens each (0: as many as the model reads).

    From TEMPERATURES, then the vertex of the parabola through the best and its neighbours, over log tau.
    """
    nll = torch.zeros(len(TEMPERATURES), dtype=torch.float64)

    def add(log_p: Tensor, target: Tensor) -> None:
        log_p_t = log_p.gather(1, target[:, None]).squeeze(1)
        for k, tau in enumerate(TEMPERATURES.tolist()):
            fitted_t = to_float64(log_p_t / tau - (log_p / tau).logsumexp(1))
            nll[k] -= with_epsilon(fitted_t, log_p.shape[1]).sum().cpu()

    context = context or model.trunk.context
    score(model, ids, context, draws, device, dtype, each=add, part=-(-FITTED_TO // context), context=context)
    if nll.isnan().any():
        raise Degenerate("its log-probabilities are not numbers")
    best = int(nll.argmin())
    if not 0 < best < len(nll) - 1:
        return float(TEMPERATURES[best])
    before, at, after = nll[best - 1 : best + 2].tolist()
    vertex = (before - after) / (before - 2 * at + after) / 2 if before + after > 2 * at else 0.0
    return float(TEMPERATURES[best] * 2 ** (vertex / 4))
