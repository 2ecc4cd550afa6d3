"""Which device, and in which precision: what "auto" means here, and why.

Importing this module does nothing; `choose_dtype` is a pure function of the device's capabilities.
"""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from runtime.errors import UserError
from runtime.values import CHOICES, DTYPES, check_dtype

# oneDNN computes torch's 16-bit matrix products on a CPU: natively with one of these features, else emulated
NATIVE = {
    "bfloat16": ("amx_bf16", "avx512_bf16", "sve_bf16", "bf16"),
    "float16": ("amx_fp16", "avx512_fp16", "fp16_arith"),
}

# The first of these variables that is set gives a level, above which oneDNN uses nothing.
# torch.cpu.get_capabilities() does not see it. _ALLOWED has what a level leaves of AMX and of the features
# that compute in 16 bits; any other value, such as ALL, leaves everything.
# Source: oneDNN's developer guide, "CPU Dispatcher Control".
# ATEN_CPU_CAPABILITY and MKL_ENABLE_INSTRUCTIONS do not change the speed of these products (torch 2.13).
ISA_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_BF16 = ("avx512_bf16",)
_FP16 = (*_BF16, "avx512_fp16")
_AMX = (*_FP16, "amx_tile", "amx_int8", "amx_bf16")
_ALL = (*_AMX, "amx_fp16")
_BELOW_BF16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI")
_ALLOWED = {
    **dict.fromkeys(_BELOW_BF16, ()),
    "AVX512_CORE_BF16": _BF16,
    "AVX512_CORE_FP16": _FP16,
    "AVX10_1_512": _FP16,
    "AVX512_CORE_AMX": _AMX,
    "AVX10_1_512_AMX": _AMX,
}


class Precision(NamedTuple):
    name: str  # one of DTYPES, never "auto"
    reason: str  # why this one, in a short phrase


# -----------------------------------------------------------------------------
# Devices


def get_device(name: str) -> torch.device:
    """ "auto" (a CUDA GPU if there is one, else the CPU), "cpu", "cuda", "cuda:1" or "mps".

    Under torchrun "auto" and "cuda" are the process's own GPU. "mps" (Apple's GPU) is never chosen by "auto",
    because nobody has run it yet. ValueError for a device that is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"device = {name!r}: use 'auto', 'cpu', 'cuda' or 'mps'")
    if device.type == "cpu":
        return device
    if device.type == "mps":
        if not torch.backends.mps.is_available():
            raise UserError(f"device = {name!r}: MPS is not available here; use --device=cpu")
        return device
    index = device.index if device.index is not None else int(os.environ.get("LOCAL_RANK", 0))
    if index >= torch.cuda.device_count():
        count = torch.cuda.device_count() or "no"
        raise UserError(
            f"device = {name!r}: {count} CUDA GPU is here, this would be number {index}; "
            "use --device=cpu, or another number"
        )
    return torch.device("cuda", index)


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

    Of a CUDA GPU it is the "compute_capability", such as (8, 0). Of a CPU it is {feature: whether it is
    there} as torch finds them (a missing name means no), and False for those that oneDNN must not use.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return {"compute_capability": torch.cuda.get_device_capability(device)}
    if device.type != "cpu":
        return {}
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # an older torch cannot tell
    hidden = hidden_features(os.environ, torch.backends.mkldnn.is_available())
    return {k: v and k not in hidden for k, v in found.items() if isinstance(v, bool)}


def hidden_features(environment: Mapping[str, str], has_onednn: bool = True) -> set[str]:
    """The CPU features that 16-bit matrix products do not use even if the CPU has them.

    Either `environment` forbids them, or torch was built without oneDNN (as on macOS).
    """
    if not has_onednn:
        return {*_ALL, *NATIVE["bfloat16"], *NATIVE["float16"]}
    level = next((environment[name] for name in ISA_VARIABLES if name in environment), "ALL")
    return set(_ALL) - set(_ALLOWED.get(level.upper(), _ALL))


def native(dtype: str, device: torch.device, has: Mapping[str, Any]) -> str:
    """A phrase that says what computes matrix products in `dtype` on a device with the capabilities `has`.

    "" if they are emulated.
    """
    if device.type == "cuda":
        major, minor = has["compute_capability"]
        # not torch.cuda.is_bf16_supported, which counts emulation
        return "" if dtype == "bfloat16" and major < 8 else f"this GPU has compute capability {major}.{minor}"
    if dtype == "float32":
        return "every device computes float32"
    if device.type != "cpu":
        return ""
    feature = next((f for f in NATIVE[dtype] if has.get(f)), None)
    return f"this CPU has {feature}" if feature else ""


def choose_dtype(name: str, device: torch.device, has: Mapping[str, Any] | None = None) -> Precision:
    """The dtype that `name` means on a device with the capabilities `has` (None: its own), and why.

    "auto": bfloat16 where the device computes it; else float16 on a CUDA GPU, float32 on a CPU. On MPS
    float32: nothing else has been tried there. ValueError for an unknown name, and for 16 bits on MPS.
    """
    check_dtype(name)
    if device.type == "mps":
        if name not in ("auto", "float32"):
            raise UserError(f"dtype = {name!r}: on mps only float32 is supported; use --dtype=float32")
        return Precision("float32", "no other dtype has been tried on mps")
    if name != "auto":
        return Precision(name, "as asked for")
    has = capabilities(device) if has is None else has
    if why := native("bfloat16", device, has):
        return Precision("bfloat16", why)
    if device.type == "cuda":
        return Precision("float16", f"{native('float16', device, has)}, which has no bfloat16")
    return Precision("float32", "this CPU has no bfloat16 instructions")


def emulation(dtype: str, device: torch.device, has: Mapping[str, Any] | None = None) -> str:
    """What a product in `dtype` costs on a device that emulates it, measured now; "" if it does not."""
    if native(dtype, device, capabilities(device) if has is None else has):
        return ""
    what = "GPU" if device.type == "cuda" else "CPU"
    times = product_seconds(dtype, device, 3) / product_seconds("float32", device, 20)
    shown = f"{times:.0f}" if times >= 10 else f"{times:.1f}"
    return f"{dtype} is emulated on this {what}: a matrix product takes {shown}x float32's time here"


def product_seconds(dtype: str, device: torch.device, tries: int) -> float:
    """The fastest of `tries` products (128, 256) x (256, 256): 0.1 ms in float32, tens of ms if emulated."""
    a = torch.ones(128, 256, dtype=get_dtype(dtype), device=device)
    b = torch.ones(256, 256, dtype=get_dtype(dtype), device=device)
    seconds = []
    for _ in range(tries):
        start = time.perf_counter()
        (a @ b)[0, 0].item()  # waits for a GPU
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def settle_dtype(name: str, device: torch.device) -> Precision:
    """`choose_dtype` for a program. It says on stderr what a dtype costs that is emulated here."""
    chosen = choose_dtype(name, device)
    if price := emulation(chosen.name, device):
        print(f"{price}; --dtype=auto takes {choose_dtype('auto', device).name}", file=sys.stderr)
    return chosen


def get_dtype(name: str) -> torch.dtype:
    """The torch.dtype of one of DTYPES; ValueError for another name."""
    if name not in DTYPES:
        raise UserError(f"dtype = {name!r}: use {CHOICES}")
    return getattr(torch, name)


def autocast(device: torch.device | str, dtype: str, cache: bool = True) -> AbstractContextManager:
    """The autocast context for matrix products in `dtype`, nothing for "float32".

    `cache`: whether it keeps the weights that it has cast.
    """
    lowered = get_dtype(dtype)
    if lowered == torch.float32:
        return nullcontext()
    return torch.autocast(torch.device(device).type, lowered, cache_enabled=cache)
