"""Which device, in which precision: what "auto" means here, and why.

Importing this module does nothing; `choose_dtype` is a function of the device's `capabilities`.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from common.config import Dtype
from common.errors import UserError

DTYPES = get_args(Dtype)[1:]  # without "auto"

# oneDNN computes torch's bfloat16 products on a CPU: natively with one of these features, else emulated
BFLOAT16 = ("amx_bf16", "avx512_bf16", "sve_bf16", "bf16")

# This variable keeps oneDNN from all above a level, such as AVX2, which torch.cpu.get_capabilities() does not
# see. A level whose name has none of these words counts as below those features.
# Source: oneDNN's developer guide, "CPU Dispatcher Control".
ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
ISA_WORDS = ("BF16", "FP16", "AMX", "ALL", "DEFAULT")


class Precision(NamedTuple):
    name: Dtype  # never "auto"
    reason: str  # why this one, in a short phrase


# -----------------------------------------------------------------------------
# Devices


def get_device(name: str) -> torch.device:
    """ "auto" (a CUDA GPU if there is one, else the CPU), "cpu", "cuda", "cuda:1" or "mps".

    Under torchrun "auto" and "cuda" are the process's own GPU. "mps" (Apple's GPU) is never chosen by "auto",
    because nobody has run it yet. UserError for a device that is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")  # which is nowhere
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    here = {"cpu": 1, "mps": int(torch.backends.mps.is_available()), "cuda": torch.cuda.device_count()}
    if (device.index or 0) >= here.get(device.type, 0):
        raise UserError(f"device = {name!r} is not here: there are {here}")
    return device


def busy_machine() -> str:
    """A line for the user if other processes need the CPU: torch's threads wait for each other at every
    product, and where one of them waits for a core, so do all. "" if there are cores to spare."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    if load < cores or torch.get_num_threads() == 1:
        return ""
    return f"the load is {load:.1f} on {cores} cores: a small model is much faster with OMP_NUM_THREADS=1"


def float64_device(device: torch.device | str) -> torch.device:
    """Where float64 arithmetic on numbers of `device` is done: there, or on the CPU, as MPS has none."""
    device = torch.device(device)
    return torch.device("cpu") if device.type == "mps" else device


def to_float64(x: Tensor) -> Tensor:
    """`x` in float64, on its `float64_device`."""
    return x.to(float64_device(x.device)).double()


# -----------------------------------------------------------------------------
# Precision


def capabilities(device: torch.device | str = "cpu") -> dict[str, Any]:
    """What decides the precision.

    A CUDA GPU has a "compute_capability", such as (8, 0). A CPU has {feature: whether it is there} as torch
    finds them (a missing name means no); False for those of BFLOAT16 that torch's matrix products do not use:
    torch was built without oneDNN (as on macOS), or ISA_VARIABLE keeps oneDNN from them.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return {"compute_capability": torch.cuda.get_device_capability(device)}
    if device.type != "cpu":
        return {}
    has: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # an older torch cannot tell
    level = os.environ.get(ISA_VARIABLE, "").upper()
    kept_from = bool(level) and not any(word in level for word in ISA_WORDS)
    uses_none = kept_from or not torch.backends.mkldnn.is_available()
    return {k: v and not (uses_none and k in BFLOAT16) for k, v in has.items() if isinstance(v, bool)}


def native_bfloat16(device: torch.device) -> str:
    """A phrase that says what computes matrix products in bfloat16 on a device; "" if they are emulated."""
    has = capabilities(device)
    if device.type == "cuda":
        major, minor = has["compute_capability"]
        # not torch.cuda.is_bf16_supported, which counts emulation
        return f"this GPU has compute capability {major}.{minor}" if major >= 8 else ""
    feature = next((f for f in BFLOAT16 if has.get(f)), None)
    return f"this CPU has {feature}" if feature else ""


def choose_dtype(name: Dtype, device: torch.device, begun: Dtype | None = None) -> Precision:
    """The dtype that `name` means on a device, and why.

    "auto": the dtype that a resumed run was `begun` in; else bfloat16 where the device computes it, float16
    on another CUDA GPU, float32 on another CPU. On MPS float32: nothing else has been tried there. UserError
    for 16 bits on MPS.
    """
    if device.type == "mps":
        if name not in ("auto", "float32"):
            raise UserError(f"dtype = {name!r}: on mps only float32 is supported; use --dtype=float32")
        return Precision("float32", "no other dtype has been tried on mps")
    if name != "auto":
        return Precision(name, "as asked for")
    if begun:
        return Precision(begun, "as the run was begun")
    if why := native_bfloat16(device):
        return Precision("bfloat16", why)
    if device.type == "cuda":
        return Precision("float16", "this GPU has no bfloat16")
    return Precision("float32", "this CPU has no bfloat16 instructions")


def get_dtype(name: str) -> torch.dtype:
    """The torch.dtype of one of DTYPES."""
    return getattr(torch, name)


def autocast(device: torch.device | str, dtype: str, cache: bool = True) -> AbstractContextManager:
    """The autocast context for matrix products in `dtype`, nothing for "float32".

    `cache`: whether it keeps the weights that it has cast.
    """
    lowered = get_dtype(dtype)
    if lowered == torch.float32:
        return nullcontext()
    return torch.autocast(torch.device(device).type, lowered, cache_enabled=cache)


# -----------------------------------------------------------------------------
# How fast a step could be

# Dense FLOP/s in bfloat16 and in float16 of the vendor's data sheet, by the name that
# torch.cuda.get_device_name gives. A GPU that is not here gets no MFU.
PEAK_FLOPS = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L4": 121e12,
    "NVIDIA GeForce RTX 4090": 165e12,
    "NVIDIA GeForce RTX 3090": 71e12,
}
PEAK_FLOAT16 = {**PEAK_FLOPS, "Tesla T4": 65e12}  # and of those that have no bfloat16


def peak_flops(device: torch.device, dtype: str) -> float | None:
    """Peak FLOP/s of `device` for matrix products in bfloat16 or float16; None where it is not known."""
    peaks = {"bfloat16": PEAK_FLOPS, "float16": PEAK_FLOAT16}.get(dtype, {})
    return peaks.get(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def flops_per_token(c: Any) -> float:
    """Forward and backward of one training token, of a GPTConfig: 6 for each weight of a matrix product,
    12 L C T for attention.

    Source: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, appendix B. A teacher's FLOPs are not counted.
    """
    return (
        6 * (12 * c.n_layer * c.n_embd**2 + c.padded_vocab * c.n_embd)
        + 12 * c.n_layer * c.n_embd * c.block_size
    )
