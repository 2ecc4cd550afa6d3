"""Whether a model fits into memory. What does not is refused before anything is allocated."""

import torch

from model import GPTConfig
from runtime.errors import UserError

TRAINING = 16  # bytes of a parameter in training: weight, gradient and AdamW's two moments, float32 each


def available(device: torch.device | str) -> int | None:
    """Bytes that `device` has left; None where the system does not say."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):  # not Linux
        return None


def check_fits(needed: float, device: torch.device | str, what: str, lower: str) -> None:
    """ValueError if `what` needs more bytes than `device` has, saying which settings to `lower`."""
    free = available(device)
    if free is not None and needed > free:
        raise UserError(
            f"{what} needs at least {needed / 1e9:,.1f} GB, {torch.device(device)} has "
            f"{free / 1e9:,.1f} GB available: lower {lower}"
        )


def training_bytes(config: GPTConfig, projections: int, rows: int, batch_size: int) -> int:
    """The least that a training step holds, with `rows` windows at a time out of `batch_size`.

    `projections`: parameters (padded V, C) beside the embedding, such as an untied projection's weights, or a
    standard deviation for each weight. The least is TRAINING bytes a parameter, the list of windows, and what
    the backward pass needs of each block: 14 C values a token (LayerNorms, q, k, v, attention and MLP) of at
    least 2 bytes each.
    """
    parameters = config.parameters + projections * config.padded_vocab * config.n_embd
    kept = 28 * rows * config.block_size * config.n_layer * config.n_embd
    return TRAINING * parameters + kept + 64 * batch_size


def check_model(config: GPTConfig, device: torch.device | str = "cpu", each: int = 4) -> None:
    """ValueError if a model of this size, `each` bytes a parameter, does not fit."""
    what = f"a model of {config.parameters:,} parameters"
    check_fits(each * config.parameters, device, what, "n_layer, n_embd, block_size or the vocabulary")
