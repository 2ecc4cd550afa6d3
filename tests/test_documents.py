"""data/text: rows of .jsonl, of .parquet and of the hub as documents, and single files."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import synthetic_text

from data.prepared import SPLITS, load_tokenizer, read_meta
from data.text import prepare as text
from data.text.documents import ENDINGS
from data.tokens import open_tokens
from runtime.errors import UserError

TEXTS = [
    f"document {i} .\r\n\n" + synthetic_text(1 + i % 4, i % 9) + "é\u2028\u0085 no line end"
    for i in range(200)
]
NAME = "somebody/something"


def rows(texts: list[Any], column: str = "text") -> list[dict[str, Any]]:
    return [{"id": i, column: text} for i, text in enumerate(texts)]


def write_json(path: Path, content: list[dict[str, Any]]) -> Path:
    raw = "".join(json.dumps(row) + "\n" for row in content).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
    return path


def write_parquet(path: Path, content: list[dict[str, Any]]) -> Path:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(content), path)
    return path


def prepare(tmp_path: Path, source: Path | str, **options: Any) -> dict[str, str]:
    """The text of each split of the source, from its tokens."""
    out = text.corpus.prepare(tmp_path / "out", "bytes", str(source), **options)
    tokenizer = load_tokenizer(out)
    return {split: tokenizer.decode(open_tokens(out / f"{split}.bin").ids) for split in SPLITS}


def joined(texts: list[str]) -> str:
    return "\n\n".join(texts) + "\n"


def numbers(*contents: str) -> list[int]:
    """Of the documents, in order."""
    return [int(n) for content in contents for n in re.findall(r"^document (\d+) \.", content, re.MULTILINE)]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """hub(train=texts, ...) -> the name of a data set of these splits, a local folder of the hub's layout."""
    import datasets

    real = datasets.load_dataset
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets, "load_dataset", lambda name, *a: real(str(tmp_path / "hub" / name), *a))

    def make(configuration: str = "default", column: str = "text", **splits: list[Any]) -> str:
        folder = tmp_path / "hub" / NAME
        files = ""
        for split, texts in splits.items():
            write_parquet(folder / configuration / f"{split}-00000-of-00001.parquet", rows(texts, column))
            files += f"  - split: {split}\n    path: {configuration}/{split}-*\n"
        card = f"---\nconfigs:\n- config_name: {configuration}\n  data_files:\n{files}---\n"
        (folder / "README.md").write_text(card)
        return NAME

    return make


# ---- what is read


@pytest.mark.parametrize("form", ["rows.jsonl", "rows.jsonl.gz", "folder/rows.parquet", "hub"])
def test_a_row_is_a_document(form, tmp_path, hub):
    """Whole, in one split, in the order of the source. Rows have the same splits in whatever form."""
    if form == "hub":
        source: Path | str = hub(train=TEXTS)
    else:
        write = write_parquet if form.endswith("parquet") else write_json
        path = write(tmp_path / form, rows(TEXTS))
        source = path.parent if "/" in form else path
    splits = prepare(tmp_path, source)
    found = {split: numbers(content) for split, content in splits.items()}
    assert sorted(numbers(*splits.values())) == list(range(200))
    for split, content in splits.items():
        assert content == joined([TEXTS[i] for i in found[split]])
        assert found[split] == sorted(found[split])
    total = sum(map(len, splits.values()))
    for split in ("validation", "test"):
        assert 0.01 <= len(splits[split]) / total < 0.025
    assert splits == prepare(tmp_path / "b", write_json(tmp_path / "b/other.jsonl", rows(TEXTS)))


def test_rows_beside_files(tmp_path):
    """One folder may hold all forms; empty files, empty rows and blank lines are none."""
    folder = tmp_path / "mixed"
    write_json(folder / "b/rows.jsonl", rows(["", *TEXTS[:3], ""]))
    write_parquet(folder / "c.parquet", rows(TEXTS[3:5]))
    (folder / "a.txt").write_bytes(TEXTS[5].encode())
    (folder / "none.txt").write_bytes(b"")
    with open(folder / "b/rows.jsonl", "ab") as file:
        file.write(b"\n  \n")
    splits = prepare(tmp_path, folder)
    assert sorted(numbers(*splits.values())) == list(range(6)) and all(map(numbers, splits.values()))


def test_the_same_text_is_in_one_split(tmp_path):
    """Rows are told apart by their text alone: a duplicate of a held-out row is not trained on."""
    source = write_json(tmp_path / "twice.jsonl", rows(TEXTS + TEXTS[::-1]))
    splits = prepare(tmp_path, source)
    found = {split: numbers(content) for split, content in splits.items()}
    assert all(sorted(n) == sorted(2 * list(set(n))) for n in found.values())


def test_files_of_splits(tmp_path, capsys):
    """train.jsonl, or the hub's train-00000-of-00002.parquet, in whatever folder."""
    folder = tmp_path / "named"
    write_json(folder / "data/train-00000-of-00002.jsonl", rows(TEXTS[:2]))
    write_json(folder / "data/train-00001-of-00002.jsonl.gz", rows(TEXTS[2:4]))
    write_parquet(folder / "validation.parquet", rows(TEXTS[4:5]))
    write_json(folder / "latest.jsonl", rows(TEXTS[:9]))
    (folder / "test.txt").write_text("the end\n")
    found = prepare(tmp_path, folder)
    assert found == {"train": joined(TEXTS[:4]), "validation": joined(TEXTS[4:5]), "test": "the end\n"}
    assert "not read: 1 text files" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["one.txt", "one.txt.gz", "one.jsonl"])
def test_a_single_document_is_cut(name, tmp_path, capsys):
    """At line ends, in its order, the end held out; and it says so."""
    content = synthetic_text(400, 1)
    if name == "one.jsonl":
        source = write_json(tmp_path / name, rows([content]))
    else:
        source = tmp_path / name
        raw = content.encode()
        source.write_bytes(gzip.compress(raw, mtime=0) if name.endswith(".gz") else raw)
    splits = prepare(tmp_path, source)
    assert "".join(splits.values()) == content
    shares = [len(part) / len(content) for part in splits.values()]
    assert shares == pytest.approx([0.9, 0.05, 0.05], abs=0.005)
    assert all(part.endswith("\n") for part in splits.values())
    assert "a single document: 0% to 90% train, 90% to 95% validation" in capsys.readouterr().err
    assert text.corpus.folder_name("bytes", str(source)) == "bytes-one"


# ---- the hub


def test_the_hubs_own_splits(hub, tmp_path, capsys):
    source = hub(train=TEXTS[:4], validation=TEXTS[4:5], test=TEXTS[5:8], unsupervised=TEXTS[9:])
    splits = prepare(tmp_path, source)
    assert splits == {
        "train": joined(TEXTS[:4]),
        "validation": joined(TEXTS[4:5]),
        "test": joined(TEXTS[5:8]),
    }
    assert "not read: the splits unsupervised" in capsys.readouterr().err
    assert read_meta(tmp_path / "out")["source"] == NAME


def test_a_split_that_the_hub_lacks(hub, tmp_path, capsys):
    """It is taken out of the train split; the others stay as they are."""
    splits = prepare(tmp_path, hub(train=TEXTS, validation=TEXTS[:2]))
    assert splits["validation"] == joined(TEXTS[:2])
    assert sorted(numbers(splits["train"] + splits["test"])) == list(range(200))
    assert 0.01 <= len(splits["test"]) / len(splits["train"]) < 0.025
    assert "has no split test" in capsys.readouterr().err


def test_a_data_set_without_a_train_split(hub, tmp_path):
    splits = prepare(tmp_path, hub(test=TEXTS[:150], extra=TEXTS[150:]))
    assert sorted(numbers(*splits.values())) == list(range(200))


def test_configuration_and_column(hub, tmp_path):
    hub("small", "body", train=TEXTS)
    splits = prepare(tmp_path, f"{NAME}:small", column="body")
    assert sorted(numbers(*splits.values())) == list(range(200))
    assert text.corpus.folder_name("gpt2", f"{NAME}:small") == "gpt2-something-small"
    with pytest.raises(UserError, match=r"cannot be had from the hub.*other"):
        prepare(tmp_path, f"{NAME}:other")
    with pytest.raises(
        UserError, match=r"split train, has no column 'text', it has 'id', 'body': .*--column"
    ):
        prepare(tmp_path, f"{NAME}:small", force=True)


def test_no_network(tmp_path, monkeypatch):
    import datasets

    def fails(*_: str | None) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", fails)
    with pytest.raises(UserError, match=r"'a/b' is no file or folder here.*no route.*network"):
        prepare(tmp_path, "a/b")
    for source in ("imdb", str(tmp_path / "nowhere"), "a/b/c"):  # names that the hub is not asked for
        with pytest.raises(FileNotFoundError, match="is not there.*owner/name"):
            prepare(tmp_path, source)
    assert not (tmp_path / "out").exists()


# ---- a user's mistakes

GOOD = json.dumps({"text": "a text"}).encode() + b"\n"
DAMAGE = [
    ("x.jsonl", GOOD + b'{"text": "a}\n', "x.jsonl, line 2 is not JSON"),
    ("x.jsonl", GOOD + b'["text"]\n', "x.jsonl, line 2 is not a row such as"),
    ("x.jsonl", GOOD + b"[" * 10**5 + b"\n", "x.jsonl, line 2 is not JSON"),
    ("x.jsonl", GOOD * 2 + b'{"body": "a", "id": 1}\n', "line 3 has no column 'text', it has 'body', 'id': "),
    ("x.jsonl", b'{"text": null}\n', "x.jsonl, line 1: 'text' is null, not text"),
    ("x.jsonl", b'{"text": 3}\n', "x.jsonl, line 1: 'text' is of type int, not text"),
    ("x.jsonl", b'{"text": "\\ud800"}\n', "x.jsonl, line 1: 'text' is not Unicode text"),
    ("x.jsonl", b'{"text": "caf\xe9"}\n', "x.jsonl is not UTF-8 text"),
    ("x.jsonl.gz", GOOD, "x.jsonl.gz is not a whole gzip file"),
    ("x.jsonl.gz", gzip.compress(GOOD, mtime=0)[:-9], "x.jsonl.gz is not a whole gzip file"),
    ("rows.jsonl.gz", gzip.compress(GOOD, mtime=0), "both rows.jsonl and rows.jsonl.gz: keep one"),
    ("x.parquet", b"PAR1 and nothing more", "x.parquet cannot be read as parquet"),
    ("x.parquet", b"", "x.parquet cannot be read as parquet"),
]


@pytest.mark.parametrize("name, raw, says", DAMAGE)
def test_damage_is_named_before_any_work(name, raw, says, tmp_path):
    folder = tmp_path / "folder"
    write_json(folder / "rows.jsonl", rows(TEXTS))
    (folder / name).write_bytes(raw)
    with pytest.raises(UserError) as caught:
        prepare(tmp_path, folder)
    assert says in str(caught.value) and str(folder) in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_columns_of_parquet(tmp_path):
    path = write_parquet(tmp_path / "x.parquet", [*rows(TEXTS), {"id": 7, "text": None}])
    for column, says in (
        ("body", "has no column 'body', it has 'id', 'text': choose one with data/text/prepare.py --column"),
        ("id", "x.parquet, row 1: 'id' is of type int, not text"),
        ("text", "x.parquet, row 201: 'text' is null, not text"),
    ):
        with pytest.raises(UserError, match=re.escape(says)):
            prepare(tmp_path, path, column=column)


@pytest.mark.parametrize("name, content, says", [
    ("empty.txt", "", "has 0 documents that are not empty"),
    ("empty.jsonl", "\n", "has 0 documents that are not empty"),
    ("two.jsonl", '{"text": "a"}\n{"text": "b"}\n', "has 2 documents .* too few"),
    ("line.txt", "a text of one line", "has no text for validation and test"),
    ("x.md", "text", f"x.md is no {', '.join(ENDINGS)}: convert it"),
    ("text", "text", "text is no .txt"),
])  # fmt: skip
def test_files_that_are_no_corpus(name, content, says, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=says):
        prepare(tmp_path, tmp_path / name)
    assert not (tmp_path / "out").exists()


def test_another_column_is_another_text(tmp_path):
    content = [{"text": text, "other": text.upper()} for text in TEXTS]
    source = write_json(tmp_path / "rows.jsonl", content)
    prepare(tmp_path, source)
    with pytest.raises(UserError, match="was made from .*--force"):
        prepare(tmp_path, source, column="other")


def test_two_sources_of_one_name(tmp_path, monkeypatch):
    """rows.jsonl and rows.parquet in one folder: the remedy is said before the second is read."""
    first = write_json(tmp_path / "rows.jsonl", rows(TEXTS))
    second = write_parquet(tmp_path / "rows.parquet", rows(TEXTS))
    assert text.corpus.folder_name("bytes", str(first)) == text.corpus.folder_name("bytes", str(second))
    prepare(tmp_path, first)
    monkeypatch.setattr(text, "measured", lambda *_: pytest.fail("read it"))
    with pytest.raises(UserError, match="rows.jsonl', not '.*rows.parquet': rename one .*--force.*--out"):
        prepare(tmp_path, second)
