"""The optimizer of a training: AdamW, or Muon for the trunk's matrices and AdamW for all else."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from model import LanguageModel
from runtime.checkpoint import Checkpoint
from runtime.errors import UserError

# name -> what its state holds of a parameter, each as large as that
STATE = {"AdamW": ("exp_avg", "exp_avg_sq"), "Muon": ("momentum_buffer",)}


class Several:
    """Optimizers of different parameters, used as one: what a training and its GradScaler ask of it."""

    def __init__(self, *parts: torch.optim.Optimizer):
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {type(part).__name__: part.state_dict() for part in self.parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part in self.parts:
            part.load_state_dict(state[type(part).__name__])


def make_optimizer(
    model: LanguageModel, name: str, learning_rate: float, betas: tuple[float, float], weight_decay: float
) -> torch.optim.Optimizer:
    """One of OPTIMIZERS. Weight decay is for matrices: biases and LayerNorms have none, nor have weights with
    a prior, which holds them already.

    "muon" orthogonalises the steps of the trunk's linear layers (Jordan et al. 2024,
    kellerjordan.github.io/posts/muon). Its steps are scaled to the size of AdamW's (Liu et al. 2025, arXiv
    2502.16982, section 2.2), so that both have the same learning rate. Embeddings, and with them the output
    projection, stay with AdamW.
    """
    with_prior = {id(p) for p in model.head.projection.with_prior()}
    linear = [m.weight for m in model.trunk.modules() if isinstance(m, nn.Linear)] if name == "muon" else []
    elsewhere = {id(p) for p in linear}
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for p in model.parameters():
        decays = p.dim() >= 2 and id(p) not in with_prior
        if id(p) not in elsewhere:
            (matrices if decays else others).append(p)
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=True)
    if name == "adamw":
        return adamw
    if not linear:
        raise UserError("optimizer = 'muon': the trunk has no linear layers; use optimizer = 'adamw'")
    muon = torch.optim.Muon(linear, learning_rate, weight_decay, adjust_lr_fn="match_rms_adamw")
    return cast(torch.optim.Optimizer, Several(adamw, muon))


def load_optimizer(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, ckpt: Checkpoint) -> None:
    """The moments and steps of a checkpoint, and its loss scale. UserError if they are not of this model."""
    try:
        state = dict(ckpt.optimizer or {})
        scaler.load_state_dict(state.pop("scaler", {}))
        optimizer.load_state_dict(state)
        fits = all(_fits(part) for part in getattr(optimizer, "parts", (optimizer,)))
    except Exception as e:  # torch trusts what it is given, and fails in many ways
        raise UserError(
            f"the checkpoint {ckpt.path} cannot be read: optimizer.pt is not of this model "
            f"({type(e).__name__}); use another one or train again"
        ) from e
    if not fits:
        raise UserError(
            f"the checkpoint {ckpt.path} cannot be read: optimizer.pt is not of this model; use another one "
            "or train again"
        )


def _fits(optimizer: torch.optim.Optimizer) -> bool:
    return all(
        state[key].shape == p.shape and state[key].dtype == p.dtype and _steps(state) == 1
        for p, state in optimizer.state.items()
        for key in STATE[type(optimizer).__name__]
    )


def _steps(state: dict[str, Any]) -> int:
    """How many numbers a parameter's count of steps has. Muon keeps none."""
    return state["step"].numel() if "step" in state else 1
