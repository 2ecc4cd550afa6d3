"""A run as a folder that transformers loads with code of its own: `NanoHeadsForCausalLM`.

The code is copied from here. transformers takes files that lie side by side and import each other with
`from .name import`, not packages with folders: so heads/ becomes flat, its __init__.py heads.py, and the
imports are the one thing that is changed.
"""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

import heads
import model
from labs.transformers.trunk import Pretrained, longest_text
from model import LanguageModel

MODELING = Path(__file__).with_name("modeling_nanoheads.py")
GENERATE = Path(__file__).with_name("custom_generate.py")
TRY = r"\1try:\n\1    \2\n\1finally:\n\1    pass"
# all that says which model it is. Not bayesian: the draws are stored, so the projection is plain
_MODEL = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "dropout", "head", "head_args")
_OTHERS = ("trunk", "trunk_args", "tied", "gain", "learn_gain")


def write_code(lm: LanguageModel, folder: Path) -> None:
    """modeling_nanoheads.py and all that it imports; and the head or trunk of a lab, if `lm` has one."""
    package, modules = Path(heads.__file__).parent, {type(m).__module__ for m in lm.modules()}
    labs = {name.replace(".", "_"): name for name in sorted(modules) if name.startswith("labs.")}
    sources = {path.name: path for path in sorted(package.glob("*.py")) if path.stem != "__init__"}
    sources |= {
        "heads.py": package / "__init__.py",
        "model.py": Path(model.__file__),
        MODELING.name: MODELING,
        **{f"{own}.py": Path(sys.modules[name].__file__ or "") for own, name in labs.items()},
    }
    for name, path in sources.items():
        code = path.read_text(encoding="utf-8")
        code = re.sub(r"^( *)from heads\.(\w+) import", r"\1from .\2 import", code, flags=re.MULTILINE)
        code = re.sub(r"^( *)from (heads|model) import", r"\1from .\2 import", code, flags=re.MULTILINE)
        code = re.sub(r"^( *)from \. import", r"\1from .heads import", code, flags=re.MULTILINE)
        # not needed there; transformers demands all packages that are not imported in a `try`
        code = re.sub(r"^( *)(import torchbnn|from common\..*)$", TRY, code, flags=re.MULTILINE)
        (folder / name).write_text(code, encoding="utf-8")
    with open(folder / MODELING.name, "a", encoding="utf-8") as file:
        file.write("\n# transformers before 5.23 copies what this file imports, not what those files do\n")
        file.writelines(f"from .{n[:-3]} import __name__ as _\n" for n in sources if n != MODELING.name)
        for own in labs:
            room, known = ("heads", "HEADS") if own.endswith("_heads") else ("model", "TRUNKS")
            file.write(f"from .{room} import {known}\nfrom .{own} import {known} as _\n{known}.update(_)\n")


@torch.no_grad()
def to_transformers(
    lm: LanguageModel, config: dict[str, Any], folder: Path, end: int | None, samples: int, seed: int
) -> None:
    """Writes the model of a run's `config`, the code included.

    end      id of the token that ends a text, if the vocabulary has one
    samples  draws of a Bayesian projection's weights that are stored, a function of the `seed`
    """
    from labs.transformers.modeling_nanoheads import (  # importing takes seconds
        NanoHeadsConfig,
        NanoHeadsForCausalLM,
    )

    ends: dict[str, Any] = {"bos_token_id": end, "eos_token_id": end}
    size, draws = lm.trunk.config, lm.head.draws(samples, seed) if config["bayesian"] else []
    run = {key: config[key] for key in _MODEL} | {key: config[key] for key in _OTHERS if key in config}
    if isinstance(lm.trunk, Pretrained):  # its tokenizer puts the start token; it reads all that it can
        run["trunk_args"] = {"architecture": run["trunk_args"]["architecture"]}
        run["block_size"] = longest_text(lm.trunk.model.config)
        theirs = {key: getattr(lm.trunk.model.config, key, None) for key in ends}
        ends = theirs if theirs["eos_token_id"] is not None else ends
    name = MODELING.stem
    written = NanoHeadsConfig(
        run=run,
        draws=len(draws),
        vocab_size=size.vocab_size,
        num_hidden_layers=size.n_layer,
        num_attention_heads=size.n_head,
        hidden_size=size.n_embd,
        **ends,
        auto_map={
            "AutoConfig": f"{name}.NanoHeadsConfig",
            "AutoModelForCausalLM": f"{name}.NanoHeadsForCausalLM",
        },
    )
    exported = NanoHeadsForCausalLM(written)
    exported.config.max_position_embeddings = exported.context
    trained = lm.state_dict()
    for key, p in exported.lm.named_parameters():
        p.copy_(trained[key])
    for i, drawn in enumerate(draws):
        exported.drawn[i] = drawn.weight
    exported.save_pretrained(folder)
    write_code(lm, folder)
    if hasattr(lm.trunk, "fills"):  # gaps
        (folder / "custom_generate").mkdir()
        shutil.copy(GENERATE, folder / "custom_generate" / "generate.py")
