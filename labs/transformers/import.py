"""Writes a model of transformers, or a GPT-2 of nanoGPT, as a run: what stands wherever a run does.

    python labs/transformers/import.py gpt2 out/gpt2                 # a name on the hub
    python labs/transformers/import.py FOLDER out/NAME [--block_size=512]
    python labs/transformers/import.py out-shakespeare/ckpt.pt out/NAME

GPT-2 becomes the trunk `gpt`, any other causal language model the trunk `transformers`. The run has the
weights in float32, the architecture and the tokenizer, so the model's folder may go. No code of a model's
folder is ever run. See README.md beside this file.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

from common.config import Natural, cli, read
from common.errors import UserError, first_line, reading
from common.files import locked
from common.hub import offline
from common.places import WORK
from data.tokenizers import GPT2Tokenizer, Tokenizer
from labs.transformers.gpt2 import as_trunk, from_gpt2, is_computed, read_nanogpt
from labs.transformers.tokenizer_files import exported_tokenizer
from labs.transformers.trunk import TOLERANCE, distance, longest_text
from model import build
from training.checkpoint import holds_run, save, weights_digest
from training.run import Progress, Run, RunConfig, restore

# what some architectures multiply logits by, from their configuration
FACTORS = {
    "logits_scaling": lambda x: 1 / x,  # Granite
    "logit_scale": lambda x: x,  # Cohere
    "lm_head_multiplier": lambda x: x,  # Falcon-H1
}


@dataclass
class ImportConfig:
    # fmt: off
    model: str               # a folder of transformers, a name on the hub, or a checkpoint file of nanoGPT
    out: str                 # the folder of the run
    block_size: Natural = 0  # tokens that it reads at once; 0: as many as it can
    # fmt: on


def import_model(name: str, out: Path, block_size: int = 0) -> None:
    """Writes the run `out` of the model `name`, see ImportConfig. UserError, of one line, if it cannot be
    read or computed."""
    if holds_run(out):
        raise UserError(f"{out} holds a run: give another folder")
    if Path(name).suffix == ".gguf":
        raise UserError(f"{name} is a GGUF: let transformers load it (gguf_file=) and save a folder")
    try:
        if Path(name).is_file():
            found, weights = read_nanogpt(Path(name))
            found, causal = found | {"trunk": "gpt"}, None
        else:
            found, weights, causal = read_folder(name)
        settings: dict[str, Any] = {"head": "softmax", "head_args": {}, "dropout": 0.0, **found}
        tokenizer = tokenizer_beside(name, settings["vocab_size"])
        if (spare := settings["vocab_size"] - tokenizer.vocab_size) < 0:
            raise UserError(f"its tokenizer has {tokenizer.vocab_size:,} tokens, its weights fewer")
        if spare:
            print(
                f"{spare:,} of its ids are none of its tokenizer's, and get no probability", file=sys.stderr
            )
        if block_size > settings["block_size"]:
            raise UserError(f"--block_size={block_size}: it reads {settings['block_size']} tokens")
        settings |= {"vocab_size": tokenizer.vocab_size, "block_size": block_size or settings["block_size"]}
        if (bias := weights.get("head.projection.bias")) is not None:
            weights["head.projection.bias"] = bias[: tokenizer.vocab_size]
        if settings["trunk"] == "gpt":
            weights = as_trunk(weights, tokenizer.vocab_size)
            if len(places := weights["trunk.wpe.weight"]) > settings["block_size"]:
                weights["trunk.wpe.weight"] = places[: settings["block_size"]]
        model = build(settings).eval()
        restore(model, weights, Path(name))
        if causal is not None and not (off := distance(model, causal)) < TOLERANCE:
            what = f"its {type(causal).__name__} is no softmax of its readout"
            raise UserError(f"{what}, or reads what comes later: log p is off by {off:.2g}")
    except ModuleNotFoundError:
        raise
    except Exception as e:  # torch, transformers and the hub raise many kinds; the user needs one line
        where = "" if Path(name).exists() else " from the hub (no file or folder of that name here)"
        raise UserError(f"cannot import {name!r}{where}: {first_line(e)}") from e
    settings |= {"init_from": name, "init_weights": weights_digest(source(name)), "dataset": ""}
    settings |= {"tokenizer": tokenizer.name, "tokenizer_fingerprint": tokenizer.fingerprint}
    config = RunConfig(name=out.name, out_dir=str(out), **settings)
    save(out / "best", model, config, Progress(), None, tokenizer)


def read_folder(name: str) -> tuple[dict[str, Any], dict[str, Tensor], Any]:
    """A causal language model of transformers: the settings of its run, its tensors by our names, itself."""
    if not Path(name).is_dir():
        offline()
    from transformers import AutoConfig, AutoModelForCausalLM  # seconds to import

    config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    if hasattr(config, "quantization_config"):
        raise UserError("it is quantized: save it in a floating-point type first")
    if Path(name).is_dir():  # before it is built: a config.json can ask for any size
        stored, needed = sum(file.stat().st_size for file in Path(name).iterdir()), config.num_hidden_layers
        if needed < stored:
            with torch.device("meta"):
                causal = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            needed = sum(p.numel() for p in causal.parameters())
        if needed > stored:
            raise UserError(f"its files have {stored:,} bytes, its config.json means {needed:,} parameters")
    how: Any = {"dtype": torch.float32, "trust_remote_code": False, "output_loading_info": True}
    read: Any = AutoModelForCausalLM.from_pretrained(name, **how)
    causal, loaded = read
    # transformers would fill them with random numbers, or leave them out
    if wrong := sorted({*loaded["missing_keys"], *loaded["unexpected_keys"]}):
        raise UserError(f"{wrong[0]} is missing or extra")
    causal.eval().requires_grad_(False)
    base, readout = causal.base_model, causal.get_output_embeddings()
    tied = readout.weight is base.get_input_embeddings().weight
    settings: dict[str, Any] = {
        "vocab_size": len(readout.weight),
        "block_size": longest_text(config),
        "n_layer": config.num_hidden_layers,
        "n_head": getattr(config, "num_attention_heads", 1),
        "n_embd": readout.weight.shape[1],
    }
    if is_computed(config) and tied:
        return settings | {"trunk": "gpt"}, from_gpt2(base), causal

    # The trunk `transformers`
    architecture = config.to_diff_dict()
    for key in ("architectures", "dtype", "transformers_version", "_name_or_path", "_model_name_or_path"):
        architecture.pop(key, None)
    # JSON has no infinity; where an architecture has one (Mamba-2) it is the default
    architecture = {k: v for k, v in architecture.items() if not (isinstance(v, list) and math.inf in v)}
    if architecture.get("output_router_logits"):
        print("its router's auxiliary loss is no part of a run's training", file=sys.stderr)
    start = start_token(name)
    settings |= {"trunk": "transformers", "tied": tied, "block_size": settings["block_size"] - (start >= 0)}
    settings["trunk_args"] = {"architecture": architecture, "start_token": start}
    weights = {f"trunk.model.{key}": tensor for key, tensor in base.state_dict().items()}
    if not tied:
        weights["head.projection.weight"] = readout.weight
    if settings["n_embd"] % settings["n_head"]:
        settings["n_head"] = 1  # the architecture has its own; no width is divided by this one

    # The head, softmax unless
    if getattr(readout, "bias", None) is not None:
        settings["head"] = "softmax_bias"
        weights["head.projection.bias"] = readout.bias
    for key, factor in FACTORS.items():
        if (value := getattr(config, key, None)) is not None:
            settings["gain"] = factor(value)
    if cap := getattr(config, "final_logit_softcapping", None):
        settings |= {"head": "softcap", "head_args": {"cap": float(cap)}}
    return settings, weights, causal


# -----------------------------------------------------------------------------
# What lies beside the weights


def source(name: str) -> Path:
    """The folder or file of a model, that of the hub's cache for a name there."""
    if Path(name).exists():
        return Path(name)
    from transformers.utils import cached_file

    return Path(cached_file(name, "config.json") or "").parent


def tokenizer_beside(name: str, vocab_size: int) -> Tokenizer:
    """The tokenizer that lies beside the weights; GPT-2's where none does and there are as many tokens."""
    folder = source(name)
    file = (folder.parent if folder.is_file() else folder) / "tokenizer.json"
    if not file.is_file() and not Path(name).exists():
        from transformers.utils import cached_file

        file = Path(cached_file(name, "tokenizer.json", _raise_exceptions_for_missing_entries=False) or "")
    if file.is_file():
        return exported_tokenizer(file)
    if vocab_size not in (50257, 50304):
        raise UserError(f"it has {vocab_size} tokens and no tokenizer.json beside it to say which")
    print(f"{name} has no tokenizer.json: its {vocab_size} tokens are taken for GPT-2's", file=sys.stderr)
    return GPT2Tokenizer()


def start_token(name: str) -> int:
    """The id that its tokenizer puts before every text; -1 if none."""
    from transformers import AutoTokenizer

    with reading(f"the tokenizer.json of {name}"):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    return tokenizer.bos_token_id if tokenizer("").input_ids[:1] == [tokenizer.bos_token_id] else -1


# -----------------------------------------------------------------------------
# By name


def run_folder(name: str) -> Path:
    """The run in out/ that the model `name` is or becomes. UserError if another one stands there."""
    path = Path(name).resolve() if Path(name).exists() else Path(name)
    out = WORK / "out" / (path.parent.name if path.is_file() else path.name)
    with locked(out.with_name(f".{out.name}.import.lock")):  # other processes wait, then find it
        if not holds_run(out):
            import_model(name, out)
            print(f"imported {name} into {out}", file=sys.stderr)
    origin = Run(out).config
    if origin.init_from != name or origin.init_weights != weights_digest(source(name)):
        raise UserError(
            f"{out} is not {name}: python labs/transformers/import.py {name} out/ANOTHER, and give that"
        )
    return out


def main(argv: list[str]) -> int:
    c = read(ImportConfig, argv, __doc__)
    import_model(c.model, Path(c.out), c.block_size)
    run = Run(c.out).config
    print(f"{c.out}: trunk {run.trunk}, head {run.head}, tokenizer {run.tokenizer}, {run.block_size} tokens")
    return 0


if __name__ == "__main__":
    cli(main)
