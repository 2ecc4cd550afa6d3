"""GPT-2s of other programs as the core's trunk `gpt`: transformers' in and out, nanoGPT's in."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from common.errors import UserError
from model import GPT, GPTConfig

# transformers stores these as (in, out), nn.Linear as (out, in)
_TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
# the GPT-2 that model.py computes, in transformers' settings
COMPUTED = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
}


def is_computed(config: Any) -> bool:
    """Whether a configuration of transformers is of the GPT-2 that model.py computes, not a variant."""
    usual = all(getattr(config, key, None) == value for key, value in COMPUTED.items())
    return usual and config.n_inner in (None, 4 * config.n_embd)


def from_gpt2(transformer: Any) -> dict[str, Tensor]:
    """The trunk's tensors, of a GPT2Model."""
    return {k: w.t() if k.endswith(_TRANSPOSED) else w for k, w in transformer.state_dict().items()}


def read_nanogpt(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The sizes and the trunk's tensors in a checkpoint of nanoGPT. Biases that it lacks are zeros.

    nanoGPT's GELU is exact, GPT-2's and ours is an approximation by tanh: log-probabilities of a tiny model
    differ by at most 4e-4 (tests/test_import.py).
    """
    saved = torch.load(file, map_location="cpu", weights_only=True)
    sizes = {
        key: saved["model_args"][key] for key in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")
    }
    state = {key.removeprefix("_orig_mod."): w for key, w in saved["model"].items()}
    if not torch.equal(state.pop("lm_head.weight"), state["transformer.wte.weight"]):
        raise UserError("its output projection is not the token embedding")
    state = {k.removeprefix("transformer."): w for k, w in state.items() if not k.endswith(".attn.bias")}
    biases = {
        key.removesuffix("weight") + "bias": torch.zeros(len(w))
        for key, w in state.items()
        if key.endswith("weight") and key not in ("wte.weight", "wpe.weight")
    }
    return sizes, biases | state


def as_trunk(state: dict[str, Tensor], vocab_size: int) -> dict[str, Tensor]:
    """The tensors of a run, with embeddings of `vocab_size` tokens and our padding."""
    size = GPTConfig(vocab_size=vocab_size)
    weights = {f"trunk.{key}": w.detach().float() for key, w in state.items()}
    rows = weights["trunk.wte.weight"][:vocab_size]
    return weights | {"trunk.wte.weight": F.pad(rows, (0, 0, 0, size.padded_vocab - vocab_size))}


def to_gpt2(model: GPT, folder: str | Path, end: int | None = None, pad: int | None = None) -> None:
    """Writes the trunk as a `GPT2LMHeadModel` folder that transformers reads.

    `end`: id of the token that ends a text, at which `generate` stops; None: no token does. `pad`: of the one
    that shorter texts of a batch are filled up with.

    GPT-2's head is a plain softmax tied to the embedding: export.py says which models can become one.
    """
    from transformers import GPT2Config, GPT2LMHeadModel  # seconds to import

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
