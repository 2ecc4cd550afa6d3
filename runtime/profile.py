"""How fast a step could be: FLOPs a token, and the GPU's peak where it is known."""

import torch

from model import GPTConfig

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


def flops_per_token(c: GPTConfig) -> float:
    """Forward and backward, of one training token: 6 for each weight of a matrix product, 12 L C T for
    attention.

    Source: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, appendix B. A teacher's work is not counted: MFU
    is of the model's FLOPs.
    """
    return (
        6 * (12 * c.n_layer * c.n_embd**2 + c.padded_vocab * c.n_embd)
        + 12 * c.n_layer * c.n_embd * c.block_size
    )
