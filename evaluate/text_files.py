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

from common.errors import UserError
from common.files import read_text
from evaluate.names import check_name, named_path
from evaluate.settings import Settings
from evaluate.texts import common_words

ENDINGS = (".txt", ".jsonl")


class Text(NamedTuple):
    text: str
    prompt: str | None  # that it continues


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


def apart(arguments: list[str]) -> tuple[list[Texts], list[str]]:
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
    """UserError naming the file, and its line."""
    check_name(name)
    content, texts = read_text(path), []
    if path.suffix == ".txt":
        for text in re.split(r"\n(?:[^\S\n]*\n)+", content.strip("\n")):
            texts.append(Text(text, None))
    else:
        for at, line in enumerate(content.split("\n"), 1):
            if line.strip():
                texts.append(read_line(line, f"{path}, line {at}"))
    texts = [t for t in texts if t.text.strip()]
    prompts = [t.prompt for t in texts if t.prompt is not None]
    if prompts and len(prompts) < len(texts):
        raise UserError(f"{path}: prompt: {len(prompts)} of {len(texts)} texts have one; give all or none")
    digest = hashlib.sha256(content.encode(errors="replace")).hexdigest()
    return Texts(name, path, [t.text for t in texts], prompts, digest)


def read_line(line: str, where: str) -> Text:
    """The text of a line of JSON."""
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error})") from None
    fields = row if isinstance(row, dict) else {"text": row}
    text, prompt = fields.get("text"), fields.get("prompt")
    if not isinstance(text, str) or not isinstance(prompt, str | None):
        raise UserError(f'{where}: give {{"text": "..."}}, with "prompt": "..." beside it or not')
    return Text(text, prompt)


def fitting(file: Texts, s: Settings) -> Texts:
    """As many of its texts as every row has. UserError if they are too few or too short for the table."""
    if s.protocol == "paper":
        raise UserError(f"{file.path}: texts of a file stand in the honest protocol alone; leave it out")
    if len(file.texts) < s.texts:
        raise UserError(
            f"{file.path} has {len(file.texts)} texts, this table measures {s.texts} of each row: give more "
            f"texts, or --texts={len(file.texts)}"
        )
    texts, prompts = file.texts[: s.texts], file.prompts[: s.texts]
    if s.words > (least := common_words(texts, s.tokenize)):  # as for human texts
        raise UserError(
            f"{file.path}: its texts are too short, this table cuts each to {s.words} words and 95% of them "
            f"have {least}: give longer texts, or --words={least}"
        )
    return file._replace(texts=texts, prompts=prompts)
