"""The __init__.py of an installed nanoheads: any output head's loss for the models of others.

    from nanoheads import HEADS, linear_loss, log_probs

Nothing is imported before one of these names is used, so that `nanoheads --help` need not wait for torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .heads import HEADS, linear_loss, log_probs

__all__ = ["HEADS", "linear_loss", "log_probs"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import heads

    return getattr(heads, name)
