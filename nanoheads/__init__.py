"""nanoHeads as a library, for the models of others.

    from nanoheads import GPT, GPTConfig, HEADS, Head, Targets, causal_loss, linear_loss, log_probs
    from nanoheads.truth import Language

Any output head's loss and distribution, the trunk, and a language of known truth. Nothing is imported before
one of these names is used, so that `import nanoheads` and `nanoheads --help` need not wait for torch.
Installed, the rooms lie in this folder; in a checkout they lie beside it.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .heads import HEADS, Head, Targets, causal_loss, linear_loss, log_probs
    from .model import GPT, GPTConfig

__version__ = "0.1.0"  # of the package too: pyproject.toml reads it here
ROOMS = dict.fromkeys(("GPT", "GPTConfig"), "model")
__all__ = ["GPT", "HEADS", "GPTConfig", "Head", "Targets", "causal_loss", "linear_loss", "log_probs"]

if not (Path(__file__).parent / "heads").is_dir():
    __path__.append(str(Path(__file__).resolve().parents[1]))


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{ROOMS.get(name, 'heads')}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
