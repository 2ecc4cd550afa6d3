"""nanoHeads as a library, for the models of others: any output head's loss, and a language of known truth.

    from nanoheads import HEADS, linear_loss, log_probs
    from nanoheads.truth import Language

Nothing is imported before one of these names is used, so that `nanoheads --help` need not wait for torch.
Installed, the rooms lie in this folder; in a checkout they lie beside it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .heads import HEADS, linear_loss, log_probs

__all__ = ["HEADS", "linear_loss", "log_probs"]

if not (Path(__file__).parent / "heads").is_dir():
    __path__.append(str(Path(__file__).resolve().parents[1]))


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import heads

    return getattr(heads, name)
