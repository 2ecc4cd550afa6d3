"""The exact next-token distributions of a prepared split, stored beside its token file as SPLIT.truth.npz.

The file holds the machine's tables (see data.grammar.machine.Tables) and, for each position, the state in
which its token is chosen: four bytes, where the few hundred non-zero probabilities would take kilobytes.
p(. | state) is the product of one row of each of two tables.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data.grammar.machine import UNKNOWN, Machine, Tables
from data.held_out import truth_path
from data.tokens import TokenFile
from runtime.errors import UserError
from runtime.files import replacing

KIND = "grammar"  # the folder of this module, by which data.held_out finds it


class GrammarTruth(NamedTuple):
    """A data.held_out.Truth."""

    machine: Machine
    states: np.ndarray  # (T,) state in which each token of the split is chosen
    info: dict[str, Any]  # sha256 of the split's text, its tokens, and what `describe` says

    @property
    def end(self) -> int:
        """The token that ends a document."""
        return self.machine.end

    def probs(self, positions: np.ndarray) -> np.ndarray:
        """p(token at position | all tokens before it) (N, V), float64, for positions (N,)."""
        return self.machine.probs(self.states[positions])

    def chances(self, positions: np.ndarray, new: np.ndarray) -> np.ndarray:
        """p(token | the split before the position, and the new tokens before it) (n, L) of the tokens `new`
        (n, L); 0 after a forbidden one."""
        return self.machine.chances(self.states[positions], new)

    def judge(self, prompts: np.ndarray, new: np.ndarray) -> np.ma.MaskedArray:
        """Whether the grammar allows each of the sampled tokens `new` (n, L) after `prompts` (n, P): (n, L).

        A document is judged up to its first forbidden token, and only if its start is in the text.
        """
        states = self.machine.parse(np.concatenate((prompts, new), 1), UNKNOWN)[:, prompts.shape[1] :]
        allowed = self.machine.allows(states.ravel(), new.ravel()).reshape(new.shape)
        return np.ma.array(allowed, mask=states == UNKNOWN)


def describe(machine: Machine, states: np.ndarray) -> dict[str, Any]:
    """The language in numbers; entropies in nats a token. "entropy_rate" is in closed form; "entropy" is
    the split's mean."""
    documents = int((states == 0).sum())
    return {
        "entropy_rate": machine.entropy_rate,
        "entropy": float(machine.entropies[states].mean()),
        "documents": documents,
        "tokens_a_document": len(states) / documents,
    }


def write_truth(tokens: TokenFile, machine: Machine) -> GrammarTruth:
    """Parses the split and writes its truth beside it, all or nothing. UserError if the grammar forbids one
    of its tokens."""
    ids = np.asarray(tokens.ids, np.int64)
    states = machine.parse_stream(ids)
    wrong = np.flatnonzero(~machine.allows(states, ids))
    if len(wrong):
        raise UserError(
            f"{tokens.path} is not text of this grammar (token {wrong[0]} is forbidden there): "
            "prepare it again, with --force"
        )
    info = {"sha256": tokens.info["sha256"], "tokens": len(ids), **describe(machine, states)}
    arrays = {"kind": np.array(KIND), "info": np.array(json.dumps(info)), **machine.tables._asdict()}
    with replacing(truth_path(tokens.path)) as file:
        np.savez_compressed(file, states=states.astype(np.uint32), **arrays)
    return GrammarTruth(machine, states, info)


def read_truth(tokens: TokenFile, path: Path) -> GrammarTruth:
    """The truth of a token file from `path`. UserError when it is damaged, or belongs to other tokens."""
    try:
        with np.load(path, allow_pickle=False) as file:
            info = json.loads(str(file["info"]))
            states, tables = file["states"], Tables(*(file[name] for name in Tables._fields))
        if states.dtype != np.uint32:
            raise ValueError("states of another type")
        states = states.astype(np.int64)
        sizes, machine = (info["sha256"], info["tokens"], len(states)), Machine(tables)
        _check(machine, states, tokens.info["vocab_size"])
        float(info["entropy"]), math.exp(info["entropy_rate"])
    except Exception as error:  # a damaged zip raises a kind of its own for each of its parts
        raise UserError(
            f"{path} is not a truth file ({type(error).__name__}): prepare the corpus again, with --force"
        ) from None
    if sizes != (tokens.info["sha256"], len(tokens.ids), len(tokens.ids)):
        raise UserError(
            f"{path} belongs to other tokens than {tokens.path.name}: prepare the corpus again, with --force"
        )
    return GrammarTruth(machine, states, info)


def _check(machine: Machine, states: np.ndarray, vocab_size: int) -> None:
    """ValueError if the tables do not belong together, or name a class, place, theme or state that there is
    not."""
    klass, syntax, after, lexicon, theme = machine.tables
    Q, C, X, V = machine.Q, machine.C, machine.X, vocab_size
    if [t.shape for t in machine.tables] != [(V,), (Q, C), (Q, C), (X, V), (V,)]:
        raise ValueError("tables of other shapes")
    for numbers, low, high in ((klass, 0, C), (after, -1, Q), (theme, -1, X), (states, 0, Q * X)):
        if numbers.dtype != np.int64 or numbers.min() < low or numbers.max() >= high:
            raise ValueError("a number out of range")
    if not all(((p >= 0) & (p <= 1 + 1e-9)).all() for p in (syntax, lexicon)):
        raise ValueError("probabilities that are none")
    if np.abs(syntax.sum(1) - 1).max() > 1e-6:
        raise ValueError("probabilities that are none")
