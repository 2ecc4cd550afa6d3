"""Which runs can stand in one table: of one corpus and tokenizer, of one length of context, with names of
their own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError, checking
from data.open import folder_of, found_path, measure_of
from data.tokens import TokenFile, open_tokens
from model import trunk_on_meta
from tables.jobs import data_of
from tables.measure import NamedRun
from tables.names import REFERENCES, check_apart


def check_together(runs: Sequence[tuple[Path, dict[str, Any], Any]], any_order: bool) -> None:
    """UserError if two runs, (path, configuration, what its token files are known by), cannot stand in one
    table, trained or yet to be trained.

    any_order  whether those can be measured, too, that never read from left to right
    """
    for path, c, tokens in runs:
        first, base, known = runs[0]
        if tokens != known or c["block_size"] != base["block_size"]:
            raise UserError(f"{path} and {first} have other token files, or another block_size")
        with checking():
            if not any_order and not trunk_on_meta(c).forwards:
                raise UserError(f"{path}: trunk = {c['trunk']!r} is for --measure=orders")


def check_comparable(runs: Sequence[NamedRun], any_order: bool = False) -> None:
    """UserError if two of the rows cannot stand in one table. `any_order`: as of check_together. Of an
    imported model the text is not known; it reads as much as the others."""
    ours = [(run.path, run.ckpt.record) for run in runs if run.ckpt.config.data]
    check_together([(path, c, (c["tokenizer_fingerprint"], c["data_sha256"])) for path, c in ours], any_order)
    check_apart([*REFERENCES, *(run.name for run in runs)])


def check_planned(configs: Sequence[dict[str, Any]], any_order: bool = False) -> None:
    """`check_comparable` of runs that are yet to be trained. Their token files are known by their folder."""
    where = [data_of(c) or folder_of(c["dataset"], c["tokenizer"], c["source"]) for c in configs]
    check_together([(Path(c["out_dir"]), c, at) for c, at in zip(configs, where)], any_order)


def check_text(path: Path, dataset: str, given: int = 0) -> None:
    """UserError if what the run `path` is of is no text.

    given  tokens at the start of each sequence that are never predicted: no text has such
    """
    if measure := measure_of(dataset) or ("orders" if given else ""):
        raise UserError(f"{path} is of {dataset}, no text: python table.py --measure={measure}")


def open_split(runs: Sequence[NamedRun], data: str, split: str) -> TokenFile:
    """The split that the runs are measured on. UserError if another tokenizer made it, or if it has sequences
    of another length.

    data  its folder; "": that of the first run that was trained here
    """
    ours = [run.ckpt for run in runs if run.ckpt.config.data]
    if not data and not ours:
        raise UserError(f"{runs[0].path} names no corpus: give --data=FOLDER")
    folder = Path(data).expanduser() if data else found_path(ours[0])
    held_out = open_tokens(folder / f"{split}.bin")
    for run in runs:
        length, reads = (d.get(k) for d, k in ((held_out.info, "length"), (run.ckpt.record, "block_size")))
        tokenizer = run.ckpt.config.tokenizer_fingerprint
        if held_out.info["fingerprint"] != tokenizer or length not in (None, reads):
            raise UserError(f"{held_out.path} has another tokenizer, or another length, than {run.path}")
    return held_out
