"""What a report says first: which model read which text for how long and was judged how, and what each row
does differently. All of it comes from the runs' recorded configurations and from our files' own first lines.
"""

import ast
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from common.config import completed
from common.places import find, registered
from config.defaults import TrainConfig
from data.corpus import corpora
from evaluate.decoding import drawn_by
from evaluate.measure import PLACES
from evaluate.settings import Settings
from heads import find_head

RUN = {"name", "row", "overlay", "seed", "resume", "dataset", "tokenizer", "teacher"}  # told elsewhere
MACHINE = {"device", "dtype", "compile", "micro_batch", "label_store"}
LOGS = {"log_interval", "wandb", "wandb_project"}
LOGS |= {"eval_interval", "eval_steps", "eval_windows", "eval_samples"}
CHOICES = [key for key in vars(TrainConfig()) if key not in {*PLACES, *RUN, *MACHINE, *LOGS}]

Config = dict[str, Any]


class RowAbout(NamedTuple):
    name: str
    sentence: str  # the comment at the top of its config file; "" where there is no such file
    formula: str  # what its head's docstring begins with
    changes: list[str]  # "key = value": the choices of its configuration that are not the first row's


class Opening(NamedTuple):
    rows: list[RowAbout]
    training: str
    judging: str  # "" where nothing was measured or sampled

    @property
    def names(self) -> set[str]:
        return {row.name for row in self.rows}


def opening(
    named: Iterable[tuple[str, Config]], parameters: Sequence[int] = (), judging: str = ""
) -> Opening | None:
    """What is said of rows, (name, configuration) each; None without rows."""
    configs = {name: completed(TrainConfig, config) for name, config in named}
    if not configs:
        return None
    first = next(iter(configs.values()))
    rows = []
    for name, c in configs.items():
        changes = [f"{key} = {c[key]}" for key in CHOICES if c[key] != first[key]]
        rows.append(RowAbout(name, first_comment(c["row"]), first_paragraph(c["head"]), changes))
    return Opening(rows, training(list(configs.values()), parameters), judging)


def training(configs: list[Config], parameters: Sequence[int]) -> str:
    """The model, the text and the budget in two sentences; where rows differ, each value that there is."""

    def all_of(key: str) -> str:
        return each(c[key] for c in configs)

    size = f", {each(float(f'{n / 1e6:.2g}') for n in parameters)} million parameters" if parameters else ""
    shape = f"{all_of('n_layer')} layers, {all_of('n_embd')} wide, reads {all_of('block_size')} tokens"
    gpt = all_of("trunk") == "gpt"
    model = f"a GPT ({shape}{size})" if gpt else f"a model with the trunk {all_of('trunk')}{size}"
    sized = all("vocab_size" in c for c in configs)
    words = f", with a vocabulary of {all_of('vocab_size')}" if sized else ""
    spent = each(c["max_steps"] * c["batch_size"] * c["block_size"] for c in configs)
    return (
        f"Each row is {model}. It is trained on the corpus {each(corpus_line(c['dataset']) for c in configs)}"
        f"{words}, for {all_of('max_steps')} steps{f' ({spent} tokens)' if gpt else ''} "
        f"by {all_of('optimizer')} at a learning rate of {all_of('learning_rate')}."
    )


def each(values: Iterable[Any]) -> str:
    """The different values in words: of many numbers the lowest and the highest."""
    known = list(dict.fromkeys(values))
    words = {int: "{:,}".format, float: "{:g}".format}
    texts = [words.get(type(v), str)(v) for v in known]
    if len(known) > 2 and all(type(v) in words for v in known):
        return f"{texts[known.index(min(known))]} to {texts[known.index(max(known))]}"
    return " or ".join(texts)


def judged(settings: dict[str, Any]) -> str:
    """How the rows of a table of texts are judged, by their settings."""
    s = Settings.of({"settings": settings})
    return (
        f"Judged on the {s.split} split, and by {s.texts} texts of {s.new_tokens} tokens after prompts "
        f"of {s.prompt_tokens} ({drawn_by(s)}), by the {s.protocol} protocol."
    )


def corpus_line(dataset: str) -> str:
    """The name of a corpus and what the docstring of its folder says."""
    program = corpora().get(dataset)
    path = program and program.with_name("__init__.py")
    source = path.read_text(encoding="utf-8") if path and path.is_file() else ""
    about = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0].replace("\n", " ").rstrip(".")
    if about[1:].partition(" ")[0].islower() or about[1:2] == " ":  # a word, no name
        about = about[0].lower() + about[1:]
    return f"{dataset} ({about})" if about else dataset


def first_comment(row: str) -> str:
    """The comment at the top of config/ROW.py without its commands; "" where there is no such file."""
    if not re.fullmatch(r"[\w.]{1,100}", row) or not (path := find(f"config/{row}.py")).is_file():
        return ""
    out = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# ") or line.startswith(("# python", "# --")):
            break
        out.append(line.removeprefix("# "))
    return " ".join(out)


def first_paragraph(head: str) -> str:
    doc = find_head(head).__doc__ if head in registered("heads", "HEADS", "heads") else None
    return " ".join((doc or "").partition("\n\n")[0].split())
