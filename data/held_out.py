"""What can be scored on a split: its tokens, and what its corpus knows of them.

Perplexity needs the tokens alone. Words and bytes make it comparable across tokenizers. For a corpus whose
exact next-token distributions are known there is the truth. Nobody has to ask which corpus it is.
"""

import importlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from common.errors import reading
from common.places import CODE
from data.tokens import TokenFile, open_tokens


class Truth(Protocol):
    """The exact distributions of a split: made and read (`read_truth`) by KIND/truth.py of a lab."""

    info: dict[str, Any]  # entropy_rate and entropy (of this split), nats a token, and more about the corpus
    end: int  # the token that ends a document

    def probs(self, positions: np.ndarray) -> np.ndarray:
        """p(token at position | all tokens before it) (N, V), float64, for positions (N,) of the split."""
        ...

    def after(self, ids: np.ndarray) -> np.ndarray | None:
        """p(next token | ids) (V,) of a text (T,) that begins a document; None where nobody can tell."""
        ...

    def judge(self, prompts: np.ndarray, new: np.ndarray) -> np.ma.MaskedArray:
        """Whether the language allows each of the sampled tokens `new` (n, L) after `prompts` (n, P): (n, L)
        bool, masked where nobody can tell."""
        ...


def open_held_out(path: str | Path) -> TokenFile:
    """The split whose token file is `path`, with its truth. Errors: see `open_tokens` and `open_truth`."""
    tokens = open_tokens(path, compare=True)
    return tokens._replace(truth=open_truth(tokens))


def truth_path(tokens: Path) -> Path:
    """Where the truth of the token file `tokens` lies: validation.bin -> validation.truth.npz."""
    return tokens.with_suffix(".truth.npz")


def open_truth(tokens: TokenFile) -> Truth | None:
    """The truth of a token file; None where there is none. UserError when it is damaged, or belongs to other
    tokens."""
    path = truth_path(tokens.path)
    if not path.is_file():
        return None
    with reading(path):
        with np.load(path, allow_pickle=False) as file:
            kind = str(file["kind"])
        kinds = {file.parent.name: file for file in CODE.glob("labs/**/truth.py")}
        module = ".".join(kinds[kind].relative_to(CODE).with_suffix("").parts)
        return importlib.import_module(module).read_truth(tokens, path)
