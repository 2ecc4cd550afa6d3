"""GPT-2s of other programs: transformers' in and out, nanoGPT's in."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from common.errors import UserError, first_line
from common.hub import offline
from data.tokenizers import GPT2Tokenizer, Tokenizer, exported_tokenizer
from model import GPT, GPTConfig

# transformers stores these as (in, out), nn.Linear as (out, in)
_TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
# the GPT-2 that model.py computes, in transformers' settings
SUPPORTED = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "activation_function": "gelu_new",
    "n_inner": None,
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
}


def read_gpt2(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(the configuration, the weights) that a run of ours has, of a GPT-2 of another program: the folder or
    hub name ("gpt2") of a GPT2LMHeadModel of transformers, or a checkpoint file of nanoGPT.

    nanoGPT's GELU is exact, GPT-2's and ours is an approximation by tanh: log-probabilities of a tiny model
    differ by at most 4e-4 (tests/test_foreign.py). UserError if it cannot be read, is a variant of GPT-2 that
    this trunk does not compute, or has a vocabulary that nothing beside it names.
    """
    try:
        size, state = _nanogpt(name) if Path(name).is_file() else _transformers(name)
        vocab, tokenizer = size.vocab_size, _tokenizer_beside(name, size.vocab_size)
        size = replace(size, vocab_size=tokenizer.vocab_size)
        if vocab not in (size.vocab_size, size.padded_vocab):  # nanoGPT's are padded as ours
            raise UserError(f"it has {vocab} tokens, its tokenizer {tokenizer.name} has {size.vocab_size}")
        weights = {f"trunk.{key}": w.detach().float() for key, w in state.items()}
        rows = weights["trunk.wte.weight"][: size.vocab_size]
        weights["trunk.wte.weight"] = F.pad(rows, (0, 0, 0, size.padded_vocab - size.vocab_size))
    except Exception as e:  # torch, transformers and the hub raise many kinds; the user needs one line
        where = "" if Path(name).exists() else " from the hub (no file or folder of that name here)"
        why = f"{first_line(e)}; give another, or the folder of a run"
        raise UserError(f"cannot load a GPT-2 {name!r}{where}: {why}") from e
    path = Path(name).resolve()
    config = {**asdict(size), "name": path.stem if path.is_file() else path.name, "dataset": ""}
    config |= {"tokenizer": tokenizer.name, "tokenizer_fingerprint": tokenizer.fingerprint}
    return config | {"head": "softmax", "head_args": {}, "bayesian": False}, weights


def _transformers(name: str) -> tuple[GPTConfig, dict[str, Tensor]]:
    """The size and the tensors of a GPT2LMHeadModel."""
    if not Path(name).is_dir():
        offline()
    from transformers import GPT2Config, GPT2LMHeadModel  # here, because importing transformers takes seconds

    written, _ = GPT2Config.get_config_dict(name)
    config = {**GPT2Config().to_dict(), **SUPPORTED, **{k: v for k, v in written.items() if v is not None}}
    if config["n_inner"] == 4 * config["n_embd"]:
        config["n_inner"] = None  # which means the same
    for key, want in SUPPORTED.items():
        if config[key] != want:
            raise UserError(f"it has {key} = {config[key]!r}; this trunk computes {want!r} only")
    size = _size({**config, "block_size": config["n_positions"]})
    if Path(name).is_dir() and size.parameters > sum(f.stat().st_size for f in Path(name).iterdir()):
        raise UserError(f"its files are smaller than {size.parameters:,} parameters")
    pretrained: Any = GPT2LMHeadModel.from_pretrained(name, output_loading_info=True)
    hf, loaded = pretrained
    # transformers would fill them with random numbers, or leave them out
    if wrong := sorted({*loaded["missing_keys"], *loaded["unexpected_keys"]}):
        raise UserError(f"{wrong[0]} is missing or extra")
    state = {k: w for k, w in hf.transformer.state_dict().items() if k.partition(".attn.")[2] != "bias"}
    return size, {k: w.t() if k.endswith(_TRANSPOSED) else w for k, w in state.items()}


def _nanogpt(file: str) -> tuple[GPTConfig, dict[str, Tensor]]:
    """The size and the tensors of a checkpoint of nanoGPT: a trunk without biases has zeros for them."""
    saved = torch.load(file, map_location="cpu", weights_only=True)
    size = _size(saved["model_args"])
    state = {key.removeprefix("_orig_mod."): w for key, w in saved["model"].items()}
    if not torch.equal(state.pop("lm_head.weight"), state["transformer.wte.weight"]):
        raise UserError("its output projection is not the token embedding")
    state = {k.removeprefix("transformer."): w for k, w in state.items() if not k.endswith(".attn.bias")}
    biases = {
        key.removesuffix("weight") + "bias": torch.zeros(len(w))
        for key, w in state.items()
        if key.endswith("weight") and key not in ("wte.weight", "wpe.weight")
    }
    return size, biases | state


def _size(config: dict[str, Any]) -> GPTConfig:
    """The sizes in a foreign configuration."""
    return GPTConfig(*(config[key] for key in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")))


def _tokenizer_beside(name: str, vocab_size: int) -> Tokenizer:
    """The tokenizer that lies beside the weights; GPT-2's where none does and there are as many tokens."""
    if Path(name).exists():
        file = (Path(name).parent if Path(name).is_file() else Path(name)) / "tokenizer.json"
    else:
        from transformers.utils import cached_file

        file = Path(cached_file(name, "tokenizer.json", _raise_exceptions_for_missing_entries=False) or "")
    if file.is_file():
        return exported_tokenizer(file)
    if vocab_size not in (50257, 50304):
        raise UserError(f"it has {vocab_size} tokens and no tokenizer.json beside it to say which")
    print(f"{name} has no tokenizer.json: its {vocab_size} tokens are taken for GPT-2's", file=sys.stderr)
    return GPT2Tokenizer()


def to_gpt2(model: GPT, folder: str | Path, end: int | None = None, pad: int | None = None) -> None:
    """Writes the trunk as a `GPT2LMHeadModel` folder that transformers reads.

    `end`: id of the token that ends a text, at which `generate` stops; None: no token does. `pad`: of the one
    that shorter texts of a batch are filled up with.

    GPT-2's head is a plain softmax tied to the embedding: labs/transformers says which models can become one.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    c = model.config
    sizes: dict[str, Any] = {
        "n_positions": c.block_size,
        "n_layer": c.n_layer,
        "n_head": c.n_head,
        "n_embd": c.n_embd,
        **dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop", "summary_first_dropout"), c.dropout),
    }
    special: dict[str, Any] = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": pad}
    hf = GPT2LMHeadModel(GPT2Config(vocab_size=c.vocab_size, **special, **sizes))
    target = hf.transformer.state_dict()
    with torch.no_grad():
        for key, p in model.named_parameters():
            target[key].copy_(p.t() if key.endswith(_TRANSPOSED) else p[: len(target[key])])
    hf.save_pretrained(folder)
