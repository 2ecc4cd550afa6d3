"""Files of texts that any system wrote, for rows of a table.

    NAME=FILE.txt    texts with an empty line between two
    NAME=FILE.jsonl  a text a line: {"text": ...}, with "prompt" if it continues one; or a JSON string, as in
                     the folder of a table's samples

A text is the continuation alone, without its prompt.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import UserError, reading
from common.files import read_text
from evaluate.diversity import common_words
from evaluate.names import check_name, named_path
from evaluate.settings import Settings

ENDINGS = (".txt", ".jsonl")


class Texts(NamedTuple):
    """A row that is asked for."""

    name: str
    path: Path
    texts: list[str]
    prompts: list[str]  # of each text; [] where the file names none
    sha256: str

    def identity(self) -> dict[str, Any]:
        return {"texts_sha256": self.sha256}

    def facts(self) -> dict[str, Any]:
        return {"row": self.name, "overlay": "", "seed": None}


def split_files(arguments: list[str]) -> tuple[list[Texts], list[str]]:
    """(the files of texts, what else is asked for). UserError for a file that holds none."""
    files, others = [], []
    for argument in arguments:
        name, path = named_path(argument)
        if path.suffix in ENDINGS and not path.is_dir():
            files.append(open_texts(name or path.stem, path))
        else:
            others.append(argument)
    return files, others


def open_texts(name: str, path: Path) -> Texts:
    """UserError naming the file."""
    check_name(name)
    content = read_text(path)
    if path.suffix == ".txt":
        rows: list[Any] = re.split(r"\n(?:[^\S\n]*\n)+", content.strip("\n"))
    else:
        with reading(path):
            rows = [json.loads(line) for line in content.split("\n") if line.strip()]
    pairs: list[tuple[Any, Any]] = [
        (r.get("text"), r.get("prompt")) if isinstance(r, dict) else (r, None) for r in rows
    ]
    prompts = [prompt for _, prompt in pairs if prompt is not None]
    strings = all(isinstance(text, str) for text in [*prompts, *(text for text, _ in pairs)])
    if not strings or len(prompts) not in (0, len(pairs)):
        raise UserError(
            f'{path}: each line is {{"text": "..."}}; all have a "prompt": "..." beside it, or none'
        )
    pairs = [pair for pair in pairs if pair[0].strip()]
    digest = hashlib.sha256(content.encode(errors="replace")).hexdigest()
    return Texts(name, path, [text for text, _ in pairs], [p for _, p in pairs if p is not None], digest)


def first_texts(file: Texts, s: Settings) -> Texts:
    """As many of its texts as every row has. UserError if they are too few or too short for the table."""
    texts, prompts = file.texts[: s.texts], file.prompts[: s.texts]
    least = common_words(texts, s.tokenize) if texts else 0
    if s.protocol == "paper" or len(texts) < s.texts or least < s.words:
        raise UserError(
            f"{file.path}: {len(texts)} texts, of which 95% have {least} words, stand in no table of the "
            f"{s.protocol} protocol with --texts={s.texts} and --words={s.words}"
        )
    return file._replace(texts=texts, prompts=prompts)
