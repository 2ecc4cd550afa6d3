"""What an optimizer's step costs: AdamW, our Muon, and torch.optim.Muon, which iterates in bfloat16.

    python bench/optimizer.py [--overlay brief] [--rounds 9] [--out bench/optimizer.json]

Steps of the parameters of a model of config/OVERLAY.py with made-up gradients, no forward or backward pass.
The programs take turns; medians count.
"""

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn

from bench.common import arguments, dtypes, median, turns, write
from config.defaults import TrainConfig
from model import build
from runtime.optimizer import iteration_dtype, make_optimizer

V = 4096


def stepping(optimizer: torch.optim.Optimizer, params: list[Tensor]) -> Callable[[], None]:
    """A step with gradients that stay the same, so that nothing is made anew."""
    for p in params:
        p.grad = torch.randn_like(p)
    return optimizer.step


def programs(config: TrainConfig, dtype: str) -> dict[str, Callable[[], None]]:
    betas = (config.beta1, config.beta2)
    out = {}
    for name in ("adamw", "muon"):
        model = build({**vars(config), "vocab_size": V})
        made = make_optimizer(
            *(model, name, config.learning_rate, betas, config.weight_decay),
            dtype=iteration_dtype(dtype, torch.device("cpu")),
        )
        out[name] = stepping(made, list(model.parameters()))
    linear = [m.weight for m in model.trunk.modules() if isinstance(m, nn.Linear)]
    theirs = torch.optim.Muon(linear, config.learning_rate, adjust_lr_fn="match_rms_adamw")
    return out | {"torch.optim.Muon, matrices alone": stepping(theirs, linear)}


def main() -> None:
    p = arguments(__doc__, rounds=9)
    p.add_argument("--overlay", default="brief")
    args = p.parse_args()
    config = TrainConfig.read(["config/baseline.py", f"config/{args.overlay}.py"])
    results = []
    for dtype in dtypes():
        seconds = turns(programs(config, dtype), args.rounds, warmup=2)
        for name, values in seconds.items():
            over = median([s / a for s, a in zip(values, seconds["adamw"])])
            results.append({"dtype": dtype, "program": name, "seconds": median(values), "over_adamw": over})
            print(f"{dtype}, {name}: {1000 * median(values):.2f} ms, {over:.1f} times AdamW's")
    write(args, ["overlay", "rounds"], results)


if __name__ == "__main__":
    main()
