"""eval_diversity.py --files: the metrics of texts in files, against sacrebleu and sets of n-grams."""

import csv
import json
import math
import random
from pathlib import Path

import pytest
import sacrebleu

import eval_diversity
from common.errors import UserError

RNG = random.Random(0)
TEXTS = [" ".join(RNG.choices("a cat sat on the old mat by the sea .".split(), k=n)) for n in range(12, 20)]


def rows(tmp_path: Path, *argv: str) -> dict[str, dict[str, float]]:
    """The rows of OUT.csv, by name."""
    out = tmp_path / "out"
    assert eval_diversity.main(["--files", *argv, "--halves=5", f"--out={out}"]) == 0
    with open(f"{out}.csv", newline="") as file:
        return {row.pop("name"): {k: float(v) for k, v in row.items()} for row in csv.DictReader(file)}


def write(path: Path, texts: list[str], end: str = "\n") -> str:
    path.write_text("".join(text + end for text in texts))
    return str(path)


def test_numbers_are_those_of_sacrebleu_and_of_sets(tmp_path):
    got = rows(tmp_path, write(tmp_path / "a.txt", TEXTS), "--whole")["a"]
    others = lambda i: TEXTS[:i] + TEXTS[i + 1 :]
    scores = [sacrebleu.sentence_bleu(text, others(i)).score for i, text in enumerate(TEXTS)]
    assert got["self_bleu"] == pytest.approx(math.fsum(scores) / len(scores), rel=1e-12)
    words = [text.split() for text in TEXTS]
    for n in (1, 2, 4):
        grams = {tuple(w[i : i + n]) for w in words for i in range(len(w) - n + 1)}
        assert got[f"distinct_{n}"] == pytest.approx(len(grams) / sum(map(len, words)), rel=1e-12)
        assert got[f"distinct_{n}_ci"] > 0
    assert got["words"] == sum(map(len, words)) / len(words)


def test_a_text_is_a_line_a_document_or_a_row(tmp_path):
    files = [write(tmp_path / "lines.txt", TEXTS), "--reference", write(tmp_path / "h.txt", TEXTS[::-1])]
    files += [write(tmp_path / "strings.jsonl", list(map(json.dumps, TEXTS)))]
    files += [write(tmp_path / "rows.jsonl", [json.dumps({"text": text, "id": 1}) for text in TEXTS])]
    lines = rows(tmp_path, *files)
    assert lines["lines"] == lines["strings"] == lines["rows"] and "human" in lines
    wrapped = [text.replace(" sat", "\nsat") for text in TEXTS]
    documents = write(tmp_path / "wrapped.txt", wrapped, "\n \n\n")
    assert rows(tmp_path, documents, "--unit=document", "--whole")["wrapped"]["words"] == 15.5


def test_files_give_as_many_texts_of_as_many_words(tmp_path, capsys):
    small, large = write(tmp_path / "small.txt", TEXTS[:4]), write(tmp_path / "large.txt", TEXTS[4:] * 9)
    got = rows(tmp_path, small, large, "--words=14")
    assert "texts 4, words 14, tokenize 13a" in capsys.readouterr().out
    assert [got[name]["short_texts"] for name in got] == [2, 0]
    assert [got[name]["words"] for name in got] == [(12 + 13 + 14 + 14) / 4, 14]


@pytest.mark.parametrize(
    "name, content, flags",
    [
        ("empty.txt", "\n \n", []),
        ("one.txt", "a single text\n", []),
        ("few.txt", "a b c d\n" * 3, ["--texts=4"]),
        ("rows.jsonl", '{"body": "a b"}\n' * 4, []),
        ("numbers.jsonl", '{"text": 1}\n' * 4, []),
        ("broken.jsonl", '{"text": "a\n', []),
    ],
)
def test_a_file_that_cannot_be_measured_is_named(tmp_path, name, content, flags):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError, match=name):
        eval_diversity.main(["--files", str(path), *flags])
