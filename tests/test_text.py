"""data/text: files, rows and data sets of the hub as documents, their splits, and what is wrong with them."""

import csv
import gzip
import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from data.open import load_tokenizer
from data.prepare.documents import file_documents
from data.text.prepare import corpus as text
from data.tokens import SPLITS, open_tokens, read_made
from tests.fixtures import synthetic_text

LONG = synthetic_text(50, 3).encode()
END = "é\u2028\u0085 no line end"
TEXTS = [f"document {i} .\r\n\n{synthetic_text(1 + i % 4, i % 9)}{END}" for i in range(200)]
NAME = "somebody/something"


def write(path: Path, content: str | bytes) -> Path:
    """`content` as it is, compressed where the name says so."""
    raw = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
    return path


def write_rows(path: Path, texts: list[Any], column: str = "text") -> Path:
    """A row for each text: .parquet, or .jsonl or .csv, perhaps compressed."""
    import pyarrow
    import pyarrow.parquet

    rows = [{"id": i, column: text} for i, text in enumerate(texts)]
    if ".csv" in path.name:
        table = io.StringIO(newline="")
        csv.writer(table).writerows([["id", column], *(row.values() for row in rows)])
        return write(path, table.getvalue())
    if path.suffix != ".parquet":
        return write(path, "".join(json.dumps(row) + "\n" for row in rows))
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def prepare(tmp_path: Path, source: Path | str, **options: Any) -> dict[str, str]:
    """The text of each split of the source, from its tokens in tmp_path/out."""
    out = text.prepare(tmp_path / "out", "bytes", str(source), **options)
    tokenizer = load_tokenizer(out)
    return {split: tokenizer.decode(open_tokens(out / f"{split}.bin").ids) for split in SPLITS}


def joined(texts: list[str]) -> str:
    return "\n\n".join(texts) + "\n"


def numbers(*contents: str) -> list[int]:
    """Of the documents, in order."""
    return [int(n) for content in contents for n in re.findall(r"^document (\d+) \.", content, re.MULTILINE)]


def check_shares(contents: dict[str, str]) -> None:
    """Each of 200 documents is in one split, and the held-out ones have their share."""
    assert sorted(numbers(*contents.values())) == list(range(200))
    total = sum(len(content.encode()) for content in contents.values())
    assert all(0.01 <= len(contents[split].encode()) / total < 0.025 for split in ("validation", "test"))


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """A folder whose sub-folders are the splits."""
    folder = tmp_path / "books"
    write(folder / "train/b.txt", "the second é\r\nof all\n")
    write(folder / "train/a/z.txt.gz", synthetic_text(80, 0) + "no line end")
    write(folder / "validation/v.txt.gz", "held out\n")
    write(folder / "test/t.txt", "another\n\n")
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """hub(train=texts, ...) -> the name of a data set of these splits, a local folder of the hub's layout."""
    import datasets

    real = datasets.load_dataset
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    here = lambda name, *a, **files: real(name if files else str(tmp_path / "hub" / name), *a, **files)
    monkeypatch.setattr(datasets, "load_dataset", here)

    def make(configuration: str = "default", column: str = "text", **splits: list[Any]) -> str:
        folder, files = tmp_path / "hub" / NAME, ""
        for split, texts in splits.items():
            write_rows(folder / configuration / f"{split}-00000-of-00001.parquet", texts, column)
            files += f"  - split: {split}\n    path: {configuration}/{split}-*\n"
        card = f"---\nconfigs:\n- config_name: {configuration}\n  data_files:\n{files}---\n"
        (folder / "README.md").write_text(card)
        return NAME

    return make


def test_sub_folders_are_the_splits(books, tmp_path):
    """Files outside of them, hidden ones and empty ones are left alone."""
    for name in ("train/.hidden.txt", "train/.git/a.txt", "train/a.rst", "train/._b.txt"):
        write(books / name, b"\xff")
    for name in ("train/empty.txt", "train/nothing.txt.gz"):
        write(books / name, "")
    (books / "train/folder.txt").mkdir()
    write(books / "README.txt", "not a document")
    write(books / "validation/v.txt.gz", "\ufeffheld out\n")  # a mark at the start of a file is no text
    expected = {
        "train": synthetic_text(80, 0) + "no line end\n\nthe second é\r\nof all\n",
        "validation": "held out\n",
        "test": "another\n\n",
    }
    assert prepare(tmp_path, books) == expected
    (books / "validation").rename(books / "dev")  # beside train/
    assert prepare(tmp_path, books, force=True) == expected
    (books / "dev").rename(books / "validation")
    for split, content in expected.items():
        info = open_tokens(tmp_path / f"out/{split}.bin").info
        counts = len(content.split()), content.count("\n"), len(content.encode())
        assert (info["words"], info["lines"], info["bytes"]) == counts
        assert info["sha256"] == hashlib.sha256(content.encode()).hexdigest()
    assert read_made(tmp_path / "out")["source"] == str(books)


FORMS = ["rows.jsonl", "rows.jsonl.gz", "a[1]/rows.csv", "rows.csv.gz", "folder/rows.parquet", "hub"]


@pytest.mark.parametrize("form", FORMS)
def test_a_row_is_a_document(form, tmp_path, hub):
    """Byte for byte, in one split, in the order of the source. Rows have the same splits in whatever form."""
    source: Path | str = hub(train=TEXTS) if form == "hub" else write_rows(tmp_path / form, TEXTS)
    contents = prepare(tmp_path, source)
    check_shares(contents)
    for content in contents.values():
        assert content == joined([TEXTS[i] for i in sorted(numbers(content))])
    for i, content in enumerate(TEXTS):
        write(tmp_path / f"files/{i:03}.md", content)
    assert contents == prepare(tmp_path / "b", tmp_path / "files")


@pytest.mark.parametrize("form", FORMS[:-1])
def test_a_value_is_the_text_that_stands_there(form, tmp_path):
    values = ["NA", "null", "007", "1.50", "2020-01-01", "2020-01-01T00:00:00", "  x ", 'a "b", c']
    values += ["\x00\x7f", "\r\n.\r", "\ufeff", ""]
    for texts in (values, ["2020-01-01"] * 3):
        path = write_rows(tmp_path / form, texts)
        assert ["".join(document.lines) for document in file_documents([path], "text", "")] == texts


def test_rows_beside_files(tmp_path):
    """One folder may hold all forms; empty files, empty rows and blank lines are none."""
    folder = tmp_path / "mixed"
    write_rows(folder / "b/rows.jsonl", ["", *TEXTS[:3], ""])
    write_rows(folder / "c.parquet", TEXTS[3:5])
    write(folder / "a.txt", TEXTS[5])
    write(folder / "none.txt", b"")
    with open(folder / "b/rows.jsonl", "ab") as file:
        file.write(b"\n  \n")
    contents = prepare(tmp_path, folder).values()
    assert sorted(numbers(*contents)) == list(range(6)) and all(map(numbers, contents))


def test_files_of_splits(tmp_path):
    """train.jsonl, or the hub's train-00000-of-00002.parquet, in whatever folder."""
    folder = tmp_path / "named"
    write_rows(folder / "data/train-00000-of-00002.jsonl", TEXTS[:2])
    write_rows(folder / "data/train-00001-of-00002.jsonl.gz", TEXTS[2:4])
    write_rows(folder / "validation.parquet", TEXTS[4:5])
    write_rows(folder / "latest.jsonl", TEXTS[:9])
    write(folder / "test.txt", "the end\n")
    expected = {"train": joined(TEXTS[:4]), "validation": joined(TEXTS[4:5]), "test": "the end\n"}
    assert prepare(tmp_path, folder) == expected
    (folder / "validation.parquet").rename(folder / "valid.parquet")  # WikiText's name
    assert prepare(tmp_path, folder, force=True) == expected
    (folder / "data/train-00000-of-00002.jsonl").unlink()
    (folder / "data/train-00001-of-00002.jsonl.gz").unlink()
    with pytest.raises(UserError, match="valid.parquet"):
        prepare(tmp_path, folder, force=True)


@pytest.mark.parametrize("ending", [".jsonl", ".txt"])
def test_a_test_split_out_of_the_validation_split(tmp_path, ending):
    """TinyStories has train and valid alone: half of its valid stories are for testing."""
    folder = tmp_path / "stories"
    for split, texts in {"train": TEXTS[:9], "valid": TEXTS[100:]}.items():
        path = folder / f"Stories-{split}{ending}"
        if ending == ".txt":
            write(path, "<|endoftext|>\n".join(text + "\n" for text in texts))
        else:
            write_rows(path, texts)
    contents = prepare(tmp_path, folder)
    assert contents["train"] == joined(TEXTS[:9])
    assert sorted(numbers(contents["validation"], contents["test"])) == list(range(100, 200))
    shares = len(contents["test"]) / (len(contents["validation"]) + len(contents["test"]))
    assert 0.45 < shares < 0.55


@pytest.mark.parametrize("name", ["one.txt", "one.txt.gz", "one.jsonl"])
def test_a_single_document_is_cut(name, tmp_path):
    """At line ends, in its order, the end held out."""
    content, path = synthetic_text(400, 1), tmp_path / name
    contents = prepare(tmp_path, write_rows(path, [content]) if "json" in name else write(path, content))
    assert "".join(contents.values()) == content
    shares = [len(part) / len(content) for part in contents.values()]
    assert shares == pytest.approx([0.9, 0.05, 0.05], abs=0.005)
    assert all(part.endswith("\n") for part in contents.values())
    assert text.folder_name("bytes", str(path)) == "bytes-one"


@pytest.mark.parametrize("first", ["", "<|endoftext|>\n"])
def test_a_line_endoftext_ends_a_document(tmp_path, first):
    """Without one the file is a single document. Equal documents are in one split."""
    stories = [f"document {i % 50} .\n" + f"a story of {i % 50}\n" * (1 + i % 5) for i in range(200)]
    path = write(tmp_path / "stories.txt", first + "<|endoftext|> \n".join(stories))
    contents = prepare(tmp_path, path)
    assert not any("endoftext" in content for content in contents.values())
    assert sorted(numbers(*contents.values())) == sorted(4 * list(range(50)))
    found = [set(numbers(content)) for content in contents.values()]
    assert all(found) and found[1].isdisjoint(found[2]) and len(found[0] & (found[1] | found[2])) <= 1
    whole = prepare(tmp_path / "b", path, separator="")
    assert "".join(whole.values()) == path.read_text()


def test_the_hubs_own_splits(hub, tmp_path):
    source = hub(train=TEXTS[:4], validation=TEXTS[4:5], test=TEXTS[5:8], unsupervised=TEXTS[9:])
    parts = {"train": TEXTS[:4], "validation": TEXTS[4:5], "test": TEXTS[5:8]}
    assert prepare(tmp_path, source) == {split: joined(texts) for split, texts in parts.items()}
    assert read_made(tmp_path / "out")["source"] == NAME


def test_a_split_that_the_hub_lacks(hub, tmp_path):
    """It is taken out of the train split; the others stay as they are. Without a train split, out of all."""
    contents = prepare(tmp_path, hub(train=TEXTS, test=TEXTS[:2]))
    assert contents["test"] == joined(TEXTS[:2])
    assert sorted(numbers(contents["train"] + contents["validation"])) == list(range(200))
    assert 0.01 <= len(contents["validation"]) / len(contents["train"]) < 0.025
    contents = prepare(tmp_path / "b", hub(test=TEXTS[:150], extra=TEXTS[150:]))
    assert sorted(numbers(*contents.values())) == list(range(200))


def test_configuration_and_column(hub, tmp_path):
    hub("small", "body", train=TEXTS)
    check_shares(prepare(tmp_path, f"{NAME}:small", column="body"))
    assert text.folder_name("gpt2", f"{NAME}:small") == "gpt2-something-small"
    for source, key in ((f"{NAME}:other", "other"), (f"{NAME}:small", "text")):
        with pytest.raises(UserError, match=key):
            prepare(tmp_path, source, force=True)


def test_kept_until_the_folder_changes(books, tmp_path):
    """Whoever prepares or trains. That a file is newer is no change."""
    prepare(tmp_path, books, column="body")
    with pytest.raises(UserError, match="column"):
        prepare(tmp_path, books, column="text")
    asked = tmp_path / "out", "bytes", os.path.relpath(books)
    file = books / "test/t.txt"
    for content in ("another\n\n", "Another\n\n", "longer than before\n"):
        write(file, content)
        os.utime(file, ns=(0, file.stat().st_mtime_ns + 10**9))
        if content == "another\n\n":
            assert text.is_prepared(*asked)
            continue
        for program in (text.is_prepared, text.prepare):
            with pytest.raises(UserError, match="books has changed .* --column=body .*--force"):
                program(*asked)
    assert text.is_prepared(*asked[:2])  # who names no source, takes what is there
    assert prepare(tmp_path, books, force=True)["test"] == "longer than before\n"
    write(books / "train/new.txt", "one more\n")
    with pytest.raises(UserError, match="changed"):
        text.is_prepared(*asked)
    shutil.rmtree(books)
    assert text.is_prepared(*asked)  # nobody can tell


def test_the_documents_of_a_split_are_named(tmp_path, capsys):
    write_rows(tmp_path / "s/rows.jsonl", TEXTS)
    prepare(tmp_path, tmp_path / "s")
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().err.splitlines() if ": rows" in line)
    contents = prepare(tmp_path, tmp_path / "s")
    assert lines["train"] == "rows.jsonl:1, rows.jsonl:2, rows.jsonl:3 and 192 more"
    assert lines["test"] == ", ".join(f"rows.jsonl:{i + 1}" for i in sorted(numbers(contents["test"])))


ZIPPED = gzip.compress(LONG, mtime=0)


@pytest.mark.parametrize(
    "name, raw",
    [
        ("train/x.txt", LONG * 300 + b"\xe2\x82"),  # no UTF-8, far from its beginning
        ("train/x.txt.gz", ZIPPED[:-9]),
        ("train/x.txt.gz", ZIPPED[: len(ZIPPED) // 2] + bytes(len(ZIPPED) // 2)),
        ("test/t.txt", b""),
        ("train/x.jsonl", b'{"text": "a text"}\n{"text": "a}\n'),
        ("train/x.jsonl", b'{"body": "a", "id": 1}\n'),
        ("train/x.jsonl", b'{"text": "\\ud800"}\n'),
        ("train/x.csv", b'text\n"a'),
        ("train/x.csv", b"id;text\n1;a\n"),
        ("train/x.csv", b"text,label\nthe first document,good,extra note\n"),
        ("train/x.csv", b"id,text\n1,one\n2\n"),
        ("train/x.csv", b"text,label\na,b,\n"),
        ("train/x.parquet", b"PAR1 and nothing more"),
    ],
)
def test_damage_is_named_before_any_work(books, tmp_path, name, raw):
    (books / name).write_bytes(raw)
    with pytest.raises(UserError, match=name.split("/")[1].split(".")[0]) as caught:
        prepare(tmp_path, books)
    assert str(books) in str(caught.value) and not (tmp_path / "out").exists()
