"""The exact next-token distributions of a prepared split, stored beside its token file as SPLIT.truth.npz.

The file holds the machine's tables (machine.Tables) and, for each position, the state in which its token is
chosen: four bytes, where the few hundred non-zero probabilities would take kilobytes. p(. | state) is the
product of one row of each of two tables.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.errors import UserError
from common.files import replacing
from data.tokens import TokenFile, truth_path
from labs.known_language.grammar.machine import UNKNOWN, Machine, Tables

KIND = "grammar"  # the folder of this module, by which data.tokens finds it


class GrammarTruth(NamedTuple):
    """A data.tokens.Truth."""

    machine: Machine
    states: np.ndarray  # (T,) state in which each token of the split is chosen
    info: dict[str, Any]  # what data.tokens.Truth asks for; sha256 of the split's text, and its tokens

    @property
    def end(self) -> int:
        """The token that ends a document."""
        return self.machine.end

    def probs(self, positions: np.ndarray) -> np.ndarray:
        """p(token at position | all tokens before it) (N, V), float64, for positions (N,)."""
        return self.machine.probs(self.states[positions])

    def after(self, ids: np.ndarray) -> np.ndarray | None:
        """p(next token | ids) (V,) where `ids` (T,) begin a document; None where the grammar forbids one."""
        state = self.machine.parse(np.append(ids, self.machine.end)[None])[0, -1]
        return None if state == UNKNOWN else self.machine.probs(np.array([state]))[0]

    def judge(self, prompts: np.ndarray, new: np.ndarray) -> np.ma.MaskedArray:
        """Whether the grammar allows each of the sampled tokens `new` (n, L) after `prompts` (n, P): (n, L).

        A document is judged up to its first forbidden token, and only if its start is in the text.
        """
        states = self.machine.parse(np.concatenate((prompts, new), 1), UNKNOWN)[:, prompts.shape[1] :]
        allowed = self.machine.allows(states.ravel(), new.ravel()).reshape(new.shape)
        return np.ma.array(allowed, mask=states == UNKNOWN)


def write_truth(tokens: TokenFile, machine: Machine) -> GrammarTruth:
    """Parses the split and writes its truth beside it, all or nothing. UserError if the grammar forbids one
    of its tokens.

    Entropies are in nats a token: "entropy_rate" in closed form, "entropy" the split's mean.
    """
    ids = np.asarray(tokens.ids, np.int64)
    states = machine.parse_stream(ids)
    wrong = np.flatnonzero(~machine.allows(states, ids))
    if len(wrong):
        raise UserError(f"{tokens.path} is not text of this grammar: token {wrong[0]} is forbidden there")
    info = {"sha256": tokens.info["sha256"], "tokens": len(ids)}
    info |= {"entropy_rate": machine.entropy_rate, "entropy": float(machine.entropies[states].mean())}
    arrays = {"kind": np.array(KIND), "info": np.array(json.dumps(info)), **machine.tables._asdict()}
    with replacing(truth_path(tokens.path)) as file:
        np.savez_compressed(file, states=states.astype(np.uint32), **arrays)
    return GrammarTruth(machine, states, info)


def read_truth(tokens: TokenFile, path: Path) -> GrammarTruth:
    """The truth of a token file from `path`. UserError if it belongs to other tokens."""
    with np.load(path, allow_pickle=False) as file:
        info = json.loads(str(file["info"]))
        states, tables = file["states"].astype(np.int64), Tables(*(file[name] for name in Tables._fields))
    if (info["sha256"], info["tokens"], len(states)) != (tokens.info["sha256"], *2 * [len(tokens.ids)]):
        raise UserError(f"{path} belongs to other tokens than {tokens.path.name}")
    return GrammarTruth(Machine(tables), states, info)
