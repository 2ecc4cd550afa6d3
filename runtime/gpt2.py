"""GPT-2's own weights, in and out, through transformers."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from model import GPT, GPTConfig
from runtime.errors import UserError
from runtime.hub import offline

if TYPE_CHECKING:
    pass

# transformers stores these as (in, out), nn.Linear as (out, in)
_TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
# the GPT-2 that model.py computes, in transformers' settings; n_inner = 4 n_embd means the same as None
SUPPORTED = {
    "activation_function": "gelu_new",
    "n_inner": None,
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
}


def refuse_missing_path(name: str) -> None:
    """UserError for a name that can only be a folder here, and is none.

    The hub does not have it either, but would be asked for half a minute.
    """
    if Path(name).is_dir():
        return
    in_a_folder_here = "/" in name and Path(name.partition("/")[0]).is_dir()
    a_path = name.startswith(("out/", "results/", ".", "/", "~"))
    if a_path or in_a_folder_here or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise UserError(f"there is no folder {name!r}, and no model of the hub is called so")


def from_gpt2(name: str) -> GPT:
    """The trunk of a `GPT2LMHeadModel`: a hub name ("gpt2") or a folder that `save_pretrained` wrote.

    UserError if it cannot be loaded or is a variant of GPT-2 that this trunk does not compute.
    """
    refuse_missing_path(name)
    if not Path(name).is_dir():
        offline()
    from transformers import GPT2Config, GPT2LMHeadModel  # here, because importing transformers takes seconds

    try:
        written, _ = GPT2Config.get_config_dict(name)
        kind, classes = written.get("model_type"), written.get("architectures") or ["GPT2LMHeadModel"]
        if kind != "gpt2" or "GPT2LMHeadModel" not in classes:
            raise UserError(f"it is a {kind} {classes}")
        config = GPT2Config.from_pretrained(name)
        c = config
        size = GPTConfig(c.vocab_size, c.n_positions, c.n_layer, c.n_head, c.n_embd)
        if Path(name).is_dir() and size.parameters > sum(f.stat().st_size for f in Path(name).iterdir()):
            raise UserError(f"its files are smaller than {size.parameters:,} parameters")
        pretrained: Any = GPT2LMHeadModel.from_pretrained(name, output_loading_info=True)
        hf, loaded = pretrained
        if loaded["missing_keys"]:  # transformers would fill them with random numbers
            raise UserError(f"its weights lack {sorted(loaded['missing_keys'])[0]}")
    except Exception as e:  # transformers and the hub raise many kinds; the user needs one line of them
        where = "the folder" if Path(name).is_dir() else "the hub (no folder of that name here)"
        why = f"{(str(e).splitlines() or [type(e).__name__])[0]}; give another, or the folder of a run"
        raise UserError(f"cannot load a GPT2LMHeadModel {name!r} from {where}: {why}") from e
    for key, want in SUPPORTED.items():
        value = getattr(config, key)
        if value != want and not (key == "n_inner" and value == 4 * config.n_embd):
            raise UserError(f"{name!r} has {key} = {value!r}; this trunk computes {want!r} only")
    model = GPT(size)
    source = hf.transformer.state_dict()
    with torch.no_grad():
        for key, p in model.named_parameters():
            w = source[key].t() if key.endswith(_TRANSPOSED) else source[key]
            p[: len(w)].copy_(w)  # all of it, but for the padding rows of wte
    return model


def vocabulary_of(trunk: GPT, tokenizer: str, fingerprint: str) -> tuple[str, str, int]:
    """(tokenizer, its fingerprint, size) of a transformers folder's vocabulary. It names no tokenizer that
    could be compared with the corpus': GPT-2's size means GPT-2's, any other the corpus' own."""
    V = trunk.config.vocab_size
    return ("gpt2", "gpt2", V) if V == 50257 else (tokenizer, fingerprint, V)


def to_gpt2(model: GPT, folder: str | Path, end: int | None = None, pad: int | None = None) -> None:
    """Writes the trunk as a `GPT2LMHeadModel` folder that transformers reads.

    `end`: id of the token that ends a text, at which `generate` stops; None: no token does. `pad`: of the one
    that shorter texts of a batch are filled up with.

    GPT-2's head is a plain softmax tied to the embedding; export.py says which models can become one.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    c = model.config
    sizes: dict[str, Any] = {
        "n_positions": c.block_size,
        "n_layer": c.n_layer,
        "n_head": c.n_head,
        "n_embd": c.n_embd,
    }
    special: dict[str, Any] = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": pad}
    hf = GPT2LMHeadModel(GPT2Config(vocab_size=c.vocab_size, **special, **sizes))
    target = hf.transformer.state_dict()
    with torch.no_grad():
        for key, p in model.named_parameters():
            target[key].copy_(p.t() if key.endswith(_TRANSPOSED) else p[: len(target[key])])
    hf.save_pretrained(folder)
