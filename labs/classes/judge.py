"""How well a head classifies images: accuracy, NLL and calibration, the columns of their table, and what
Banerjee et al. 2021 published."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch

from common.device import autocast
from evaluate.metrics import Calibration
from heads import Weights
from labs.classes.sets import Images
from model import LanguageModel
from tables.columns import Column

BATCH = 200  # images scored at a time


class Judged(NamedTuple):
    """What a head does on some images, all by the distribution that the head would sample from."""

    accuracy: float  # percent whose most probable class is the right one
    nll: float  # -log p of the right class, nats an image; inf where one got probability 0
    ece: float  # expected calibration error, 15 bins, 0 to 1
    zeros: int  # images whose right class got probability 0


@torch.no_grad()
def judge_images(
    model: LanguageModel,
    images: Images,
    device: torch.device,
    dtype: str,
    draws: list[Weights],
    progress: Callable[[Iterable], Iterable] = iter,
) -> Judged:
    """Judges a model in eval mode: nan if its probabilities are no numbers. `draws`: OutputHead.draws."""
    calibration, right, nll, zeros = Calibration(), 0, 0.0, 0
    for start in progress(range(0, len(images), BATCH)):
        rows = np.arange(start, min(start + BATCH, len(images)))
        part = images.at(rows)
        labels = torch.from_numpy(part.labels).to(device)
        with autocast(device, dtype):
            hidden = model.trunk(torch.from_numpy(part.pixels).to(device)).flatten(0, 1)
        log_p = model.head.log_probs(hidden.float(), draws)  # (N, V)
        if log_p.isnan().any():
            return Judged(math.nan, math.nan, math.nan, 0)
        confidence, guess = log_p.max(1)
        hit = guess == labels
        calibration.add(confidence.exp().cpu().numpy(), hit.cpu().numpy())
        right += int(hit.sum())
        of_label = -log_p.gather(1, labels[:, None]).double()
        nll += of_label.sum().item()
        zeros += int(of_label.isinf().sum())
    n = len(images)
    return Judged(100 * right / n, nll / n, calibration.ece(), zeros)


# -----------------------------------------------------------------------------
# The table

COLUMNS = (
    Column("gain", "gain", "g", "", "g of the logits z = g h W^T + b"),
    Column("accuracy", "accuracy", ".2f", "high", "percent of the test images, most probable class"),
    Column("published", "document", ".2f", "", "accuracy that Banerjee et al. 2021 print"),
    Column("nll", "NLL", ".4f", "low", "-log p of the right class, nats an image"),
    Column("ece", "ECE", ".4f", "low", "expected calibration error of the most probable class, 15 bins"),
    Column("val_accuracy", "validation", ".2f", "", "accuracy by which the checkpoint was chosen"),
)

_ORDERS = (2, 4, 6, 8, 10)
_MARGINS = tuple(i / 10 for i in range(10))


def _of_orders(row: str, *accuracies: float) -> dict[str, float]:
    return {f"{row}_{n}": a for n, a in zip(_ORDERS, accuracies, strict=True)}


def _of_margins(*accuracies: float) -> dict[str, float]:
    return {f"sm_softmax_{m:g}": a for m, a in zip(_MARGINS, accuracies, strict=True)}


# Banerjee et al. 2021, tables 2 and 3: test accuracy in percent by dataset and row. Their softmax is in both,
# as m = 0 in table 2 with another number than in table 3
PUBLISHED: dict[str, dict[str, float]] = {
    "mnist": {
        "softmax": 99.41,
        **_of_orders("taylor", 99.54, 99.59, 99.50, 99.65, 99.51),
        **_of_orders("taylor_inf", 99.54, 99.60, 99.59, 99.62, 99.47),
        **_of_margins(99.46, 99.42, 99.45, 99.48, 99.52, 99.46, 99.54, 99.46, 99.54, 99.47),
        **_of_orders("sm_taylor", 99.67, 99.59, 99.63, 99.47, 99.45),
    },
    "cifar10": {
        "softmax": 86.87,
        **_of_orders("taylor", 86.86, 87.06, 87.17, 87.29, 87.29),
        **_of_orders("taylor_inf", 87.46, 87.37, 87.34, 87.00, 87.38),
        **_of_margins(87.09, 87.10, 87.29, 87.15, 87.33, 87.30, 87.33, 87.22, 87.12, 87.25),
        **_of_orders("sm_taylor", 87.47, 86.86, 87.08, 87.08, 87.27),
    },
    "cifar100": {
        "softmax": 48.57,
        **_of_orders("taylor", 44.70, 49.24, 49.94, 49.84, 49.04),
        **_of_orders("taylor_inf", 44.62, 47.31, 49.81, 46.69, 45.97),
        **_of_margins(48.28, 48.03, 48.06, 48.11, 47.82, 47.68, 48.95, 48.03, 47.96, 48.02),
        **_of_orders("sm_taylor", 44.77, 49.95, 49.56, 49.69, 48.11),
    },
}
