"""Which runs can stand in one table: of one corpus and tokenizer, of one length of context, with names of
their own."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from common.errors import UserError
from data.held_out import HeldOut, open_held_out
from data.prepared import folder_of, found_path, measure_of
from evaluate.measure import NamedRun
from evaluate.names import REFERENCES, RENAMED, check_apart
from model import sketch


def check_together(
    runs: list[tuple[Path, dict[str, Any]]], tokens: Callable[[dict[str, Any]], Any], any_order: bool = False
) -> None:
    """UserError if two runs, (path, configuration), cannot stand in one table, trained or yet to be trained.

    tokens     what their token files are known by
    any_order  whether those can be measured, too, that never read from left to right
    """
    first, base = runs[0]
    for path, c in runs:
        if tokens(c) != tokens(base) or c["block_size"] != base["block_size"]:
            has, other = ((d["dataset"], d["tokenizer"], d["block_size"]) for d in (c, base))
            raise UserError(f"{path} {has} and {first} {other} have other token files, or another block_size")
        if not any_order and not sketch(c).forwards:
            raise UserError(
                f"{path} has trunk = {c['trunk']!r}, which does not read from left to right: leave it out or "
                "give --measure=orders"
            )


def check_comparable(runs: Sequence[NamedRun], any_order: bool = False) -> None:
    """UserError if two of the rows cannot stand in one table. `any_order`: as of check_together. Of a model
    of another program the text is not known; it reads as much as the others."""
    ours = [(run.path, run.ckpt.config) for run in runs if not run.ckpt.foreign]
    if ours:
        check_together(ours, itemgetter("tokenizer_fingerprint", "data_sha256"), any_order)
    check_apart([*REFERENCES, *(run.name for run in runs)], RENAMED)


def check_planned(configs: Sequence[dict[str, Any]], any_order: bool = False) -> None:
    """`check_comparable` of runs that are yet to be trained. Their token files are known by their folder."""

    def folder(config: dict[str, Any]) -> Path:
        return folder_of(config["dataset"], config["tokenizer"], config["source"])

    check_together([(Path(config["out_dir"]), config) for config in configs], folder, any_order)


def check_text(path: Path, dataset: str, given: int = 0) -> None:
    """UserError if what the run `path` is of is no text, with the program that measures it.

    given  tokens at the start of each sequence that are never predicted: no text has such
    """
    if measure := measure_of(dataset) or ("orders" if given else ""):
        raise UserError(
            f"{path} is of {dataset}, whose sequences are no text: "
            f"python table.py --measure={measure} measures such runs"
        )


def data_folder(runs: Sequence[NamedRun], data: str) -> Path:
    """The folder that --data names, or else that of the first run of ours."""
    if data:
        return Path(data).expanduser()
    first = next((run for run in runs if not run.ckpt.foreign), None)
    if first is None:
        raise UserError(f"{runs[0].path} names no corpus: give the prepared folder of one, --data=FOLDER")
    return found_path(first.ckpt.config["data"], first.path)


def open_split(runs: Sequence[NamedRun], data: str, split: str) -> HeldOut:
    """The split that the runs are measured on. UserError if another tokenizer made it, or if it has sequences
    of another length."""
    held_out, config = open_held_out(data_folder(runs, data) / f"{split}.bin"), runs[0].ckpt.config
    for run in runs:
        if held_out.info["fingerprint"] != run.ckpt.config["tokenizer_fingerprint"]:
            raise UserError(
                f"{held_out.path} was made with another tokenizer ({held_out.info['tokenizer']}) than that "
                f"of {run.path} ({run.ckpt.config['tokenizer']})"
            )
    if config["block_size"] != (length := held_out.info.get("length", config["block_size"])):
        raise UserError(
            f"{held_out.path} has sequences of {length} tokens, the runs read {config['block_size']}: "
            "leave --data out to use their own"
        )
    return held_out
