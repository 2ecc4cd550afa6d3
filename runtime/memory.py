"""Whether a model fits into memory. What does not is refused before anything is allocated."""

import torch

from model import Size
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


def training_bytes(parameters: int, kept: int, batch_size: int) -> int:
    """The least that a training step holds: TRAINING bytes a parameter, what the backward pass `kept`, and
    the list of the `batch_size` windows."""
    return TRAINING * parameters + kept + 64 * batch_size


def check_model(size: Size, device: torch.device | str = "cpu", each: int = 4) -> None:
    """ValueError if a model of this size, `each` bytes a parameter, does not fit."""
    what = f"a model of {size.parameters:,} parameters"
    check_fits(each * size.parameters, device, what, size.settings)
