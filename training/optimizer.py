"""The optimizer of a training: AdamW, or Muon for the trunk's matrices and AdamW for all else; Adam; SGD."""

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from common.device import native_bfloat16
from common.errors import UserError, reading
from model import Attention, LanguageModel
from training.run import Run

# name -> the tensors of its state for each parameter, each as large as the parameter
MOMENTS = ("exp_avg", "exp_avg_sq")
STATE = {"AdamW": MOMENTS, "Adam": MOMENTS, "Muon": ("momentum_buffer",), "SGD": ("momentum_buffer",)}


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


class Muon(torch.optim.Optimizer):
    """Momentum whose step is made orthogonal: five steps of a Newton-Schulz iteration, for matrices.

    Its arithmetic is torch.optim.Muon's with adjust_lr_fn="match_rms_adamw", with three differences.
    It iterates in `dtype`; torch's always iterates in bfloat16, which a CPU without bfloat16 instructions
    emulates at a fortieth of the speed. A group's `blocks` is how many matrices stand on top of each other in
    each of its parameters, such as 3 of Q, K and V: each is made orthogonal by itself. Matrices of one shape
    are iterated together.

    Sources: Jordan et al. 2024, kellerjordan.github.io/posts/muon; the size of the step, .2 sqrt(longest
    side) times the learning rate, Liu et al. 2025, arXiv 2502.16982, section 2.2.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        weight_decay: float,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.float32,
    ):
        self.dtype = dtype
        super().__init__(groups, dict(lr=lr, weight_decay=weight_decay, momentum=momentum, blocks=1))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            shapes: dict[torch.Size, list[Tensor]] = {}
            for p in params:
                shapes.setdefault(p.shape, []).append(p)
            for (rows, columns), alike in shapes.items():
                steps = torch.stack([self._with_momentum(p, group["momentum"]) for p in alike])
                blocks = steps.view(-1, rows // group["blocks"], columns)  # (matrices, rows, columns)
                size = 0.2 * math.sqrt(max(blocks.shape[1:])) * group["lr"]
                for p, step in zip(alike, orthogonal(blocks, self.dtype).view_as(steps)):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(step, alpha=-size)

    def _with_momentum(self, p: Tensor, momentum: float) -> Tensor:
        """Nesterov's momentum: the gradient, mixed with the running mean of all gradients."""
        assert p.grad is not None
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        mean = state["momentum_buffer"].lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(mean, momentum)


def orthogonal(matrices: Tensor, dtype: torch.dtype, eps: float = 1e-7) -> Tensor:
    """Matrices U S V^T (n, rows, columns) -> about U V^T of each, with singular values between .7 and 1.2.

    The quintic iteration of Jordan et al. 2024, in `dtype`, with their coefficients.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if tall else matrices).to(dtype)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)  # singular values of at most 1
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


def iteration_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """What Muon iterates in, in a run whose matrix products are in `dtype`: bfloat16 if they are and the
    device computes it natively; else float32."""
    fast = dtype == "bfloat16" and native_bfloat16(device)
    return torch.bfloat16 if fast else torch.float32


def make_optimizer(
    model: LanguageModel,
    name: str,
    learning_rate: float,
    betas: tuple[float, float],
    weight_decay: float,
    readout_lr: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> torch.optim.Optimizer:
    """The optimizer `name`, one of config.defaults.Optimizer. Weight decay is for matrices: biases and
    LayerNorms have none, nor have Bayesian weights, which their prior pulls to 0 already.

    "muon" orthogonalises the steps of all linear layers, in `dtype`. Its steps have the size of AdamW's, so
    both have the same learning rate. Embeddings and output projections stay with AdamW. "adam" and "sgd",
    with Nesterov's momentum betas[0], have weight decay as L2, and none of the output projection. A
    `readout_lr` other than 0 is the learning rate of the token embedding and the output projection; the
    positions keep `learning_rate`. UserError for "muon" of a trunk without linear layers.
    """
    l2 = name in ("adam", "sgd")
    with_prior = {id(p) for p in model.head.projection.with_prior()}
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)] if name == "muon" else []
    qkv = {id(m.c_attn) for m in model.trunk.modules() if isinstance(m, Attention)}
    of_muon = {id(m.weight) for m in linear}
    readout = {id(p) for p in (*model.head.projection.parameters(), model.trunk.embedding)}
    groups: dict[tuple[bool, bool], list[Tensor]] = {}
    for p in model.parameters():
        if id(p) not in of_muon:
            decays = p.dim() >= 2 and id(p) not in with_prior and not (l2 and id(p) in readout)
            groups.setdefault((decays, bool(readout_lr) and id(p) in readout), []).append(p)
    parts = [
        {
            "params": params,
            "weight_decay": weight_decay * decays,
            "scale": readout_lr / learning_rate if own_rate else 1.0,
        }
        for (decays, own_rate), params in sorted(groups.items(), reverse=True)
    ]
    if name == "adam":
        return torch.optim.Adam(parts, lr=learning_rate, betas=betas)
    if name == "sgd":
        return torch.optim.SGD(parts, lr=learning_rate, momentum=betas[0], nesterov=betas[0] > 0)
    adamw = torch.optim.AdamW(parts, lr=learning_rate, betas=betas, fused=True)
    if name == "adamw":
        return adamw
    if not linear:
        raise UserError("optimizer = 'muon': the trunk has no linear layers; use optimizer = 'adamw'")
    matrices = [
        {"params": [m.weight for m in linear if id(m) not in qkv], "blocks": 1},
        {"params": [m.weight for m in linear if id(m) in qkv], "blocks": 3},
    ]
    muon = Muon([g for g in matrices if g["params"]], learning_rate, weight_decay, dtype=dtype)
    return cast(torch.optim.Optimizer, Several(adamw, muon))


def load_optimizer(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, run: Run) -> None:
    """The moments and steps of a checkpoint, and its loss scale; the rates are the configuration's. UserError
    if they are not of this model."""
    state, groups = run.optimizer(), optimizer.param_groups
    with reading(run.path / "optimizer.pt"):  # of another model's state torch makes many errors, or none
        settings = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        scaler.load_state_dict(state.pop("scaler", {}))
        optimizer.load_state_dict(state)
        for group, ours in zip(optimizer.param_groups, settings, strict=True):
            group.update(ours)
        for part in getattr(optimizer, "parts", (optimizer,)):
            for p, tensors in part.state.items():
                kept = [tensors[key] for key in STATE[type(part).__name__]]
                # one "step" a parameter; Muon counts none
                if any((x.shape, x.dtype) != (p.shape, p.dtype) for x in kept) or (
                    "step" in tensors and tensors["step"].numel() != 1
                ):
                    raise UserError("it is of another model")
