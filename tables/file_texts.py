"""Self-BLEU, Distinct-n and the other metrics of texts, of anybody's files: no model and no run.

    python eval_diversity.py --files a.txt b.jsonl --reference human.txt
    python eval_diversity.py --files mine=a.txt --unit=document --whole

A text is a line of a .txt file or, with --unit=document, what stands between blank lines; in a .jsonl file it
is a field of each line, or the line where that is a string. These numbers depend on how many texts there are,
how long they are and what a word is. So all files give as many texts, drawn by the seed, each cut to the same
number of words; the last line says all of this, to be cited with the numbers. Intervals are 95%, over random
halves of the texts. Human text is the standard: beside each value stands its distance to the reference.
"""

import json
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from common.config import AtLeast2, Natural, Seed, read
from common.errors import UserError, checking, reading
from common.files import beside, check_writable, read_text
from common.places import INSTALLED, commit
from evaluate.diversity import (
    BLEU_ORDERS,
    TEXT_METRICS,
    common_words,
    cut,
    distinct_n,
    text_metrics,
    tokenizer_for,
    words_in,
)
from tables.columns import HONEST, Column
from tables.names import check_apart, named_path
from tables.text import text_intervals
from tables.views import View


@dataclass
class FilesConfig:
    # fmt: off
    files: list[str]                # [NAME=]FILE ...: texts, .jsonl or plain UTF-8
    reference: str = ""             # a file of human texts, which the others are compared with
    unit: Literal["line", "document"] = "line"  # of plain files: a document ends at a blank line
    field: str = "text"             # of the lines of a .jsonl file
    texts: Natural = 0              # of each file; 0: as many as the smallest file has
    words: Natural = 0              # the first of each text, which are measured; 0: as many as 95% of the
    #                                 reference's texts have, or of all. Shorter texts stay as they are
    whole: bool = False             # no text is cut
    tokenize: Literal["auto", "13a", "zh", "ja-mecab", "char"] = "auto"  # what is a word, by sacreBLEU
    seed: Seed = 1337               # of the texts that are drawn from a larger file
    halves: AtLeast2 = 200          # random halves of the texts, for the intervals
    out: str = ""                   # writes OUT.md, OUT.csv and OUT.tex
    # fmt: on


def distinct(texts: list[str], tokenize: str, n: int) -> float:
    return distinct_n([words_in(text, tokenize) for text in texts], n)


METRICS = {f"distinct_{n}": partial(distinct, n=n) for n in (1, 2)} | TEXT_METRICS
COLUMNS = (
    Column("words", "words", ".1f", "", "mean number of the words that are measured of a text"),
    Column("distinct_1", "Distinct-1", ".4f", "human", "different words / words, all texts pooled"),
    Column("distinct_2", "Distinct-2", ".4f", "human", "unique 2-grams / words, all texts pooled"),
    *(c for c in HONEST if c.key in (*TEXT_METRICS, "short_texts")),
)


def texts_of(path: Path, c: FilesConfig) -> list[str]:
    """The texts of a file, in its order. UserError naming the file if it has none, or has another form."""
    with reading(path):
        content = read_text(path)
        if path.suffix == ".jsonl":
            rows = [json.loads(line) for line in content.split("\n") if line.strip()]
            found = [row if isinstance(row, str) else row[c.field] for row in rows]
        elif c.unit == "line":
            found = [line for line in content.split("\n") if line.strip()]
        else:
            blank = "\n".join(line if line.strip() else "" for line in content.split("\n"))
            found = [text for text in blank.split("\n\n") if text.strip()]
        if not found or not all(isinstance(text, str) for text in found):
            raise UserError(f"it has no texts, or {c.field!r} is another thing")
        return found


def main(argv: list[str]) -> int:
    """What `eval_diversity.py --files` runs."""
    c = read(FilesConfig, [a for a in argv if a != "--files"], __doc__ or "")
    named = [(name or path.stem, path) for name, path in map(named_path, c.files)]
    named += [("human", Path(c.reference))] if c.reference else []
    check_apart(name for name, _ in named)
    paths = dict(named)
    if c.out:
        check_writable(beside(Path(c.out), ".md"))

    # As many texts of each file, of the same number of words
    texts = {name: texts_of(path, c) for name, path in paths.items()}
    smallest = min(texts, key=lambda name: len(texts[name]))
    count = c.texts or len(texts[smallest])
    if count > len(texts[smallest]):
        raise UserError(f"texts = {count}, but {paths[smallest]} has {len(texts[smallest])}")
    for name, all_texts in texts.items():
        drawn = np.random.default_rng(c.seed).choice(len(all_texts), count, replace=False)
        texts[name] = [all_texts[i] for i in sorted(drawn)]
    standard = texts["human"] if c.reference else [*chain.from_iterable(texts.values())]
    tokenize = tokenizer_for(standard) if c.tokenize == "auto" else c.tokenize
    with checking():  # the tokenizer may need a package
        words = 0 if c.whole else c.words or max(BLEU_ORDERS, common_words(standard, tokenize))

    # The table
    rows: list[dict[str, Any]] = []
    for name, path in paths.items():
        lengths = [len(words_in(text, tokenize)) for text in texts[name]]
        row = {
            "name": name,
            "reference": name == "human",
            "words": np.minimum(lengths, words or np.inf).mean(),
        }
        try:
            row |= text_metrics(texts[name], words, tokenize, METRICS)
        except ValueError as error:  # they are too short or too few
            raise UserError(f"{path}: {error}") from error
        measured = [cut(text, words, tokenize) for text in texts[name]]
        rows.append(row | text_intervals(measured, c.halves, tokenize, METRICS))
    settings = {"texts": count, "words": words or "all", "tokenize": tokenize, "unit": c.unit}
    settings |= {"seed": c.seed, "halves": c.halves, "sacrebleu": version("sacrebleu"), "smoothing": "exp"}
    settings |= {"effective order": True, "nanoheads": version("nanoheads") if INSTALLED else commit()}
    view = View.of_summary(rows, COLUMNS, ", ".join(f"{key} {value}" for key, value in settings.items()))
    print(view.markdown, end="")
    if c.out:
        view.write(Path(c.out))
    return 0
