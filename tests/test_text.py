"""data/text: files, rows and data sets of the hub as documents, their splits, and what is wrong with them."""

import gzip
import hashlib
import io
import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import augment
import eval_diversity
from data import corpus, splits
from data.prepared import SPLITS, is_prepared, load_tokenizer, prepared, read_meta
from data.text import documents
from data.text import prepare as module
from data.text.documents import ENDINGS
from data.text.prepare import corpus as text
from data.tokens import open_tokens
from measures.store import Store
from runtime import checkpoint
from runtime.errors import UserError
from tests.fixtures import TINY, synthetic_text, train_in_process
from train import TrainConfig

LONG = synthetic_text(50, 3).encode()
TEXTS = [
    f"document {i} .\r\n\n" + synthetic_text(1 + i % 4, i % 9) + "é\u2028\u0085 no line end"
    for i in range(200)
]
NAME = "somebody/something"


def write(path: Path, content: str | bytes) -> Path:
    """`content` as it is, compressed where the name says so."""
    raw = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
    return path


def write_rows(path: Path, texts: list[Any], column: str = "text") -> Path:
    """A row for each text: .parquet or .jsonl, the latter perhaps compressed."""
    import pyarrow
    import pyarrow.parquet

    rows = [{"id": i, column: text} for i, text in enumerate(texts)]
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
def pile(tmp_path: Path) -> Path:
    """A folder of 200 documents and no splits, half of them compressed."""
    folder, lines = tmp_path / "pile", LONG.decode().splitlines(keepends=True)
    for i in range(200):
        some = "".join(lines[i % 40 : i % 40 + 1 + i % 3])
        write(folder / f"{i % 7}/{i}.txt{'.gz' if i % 2 else ''}", f"document {i} .\n{some}")
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """hub(train=texts, ...) -> the name of a data set of these splits, a local folder of the hub's layout."""
    import datasets

    real = datasets.load_dataset
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets, "load_dataset", lambda name, *a: real(str(tmp_path / "hub" / name), *a))

    def make(configuration: str = "default", column: str = "text", **splits: list[Any]) -> str:
        folder, files = tmp_path / "hub" / NAME, ""
        for split, texts in splits.items():
            write_rows(folder / configuration / f"{split}-00000-of-00001.parquet", texts, column)
            files += f"  - split: {split}\n    path: {configuration}/{split}-*\n"
        card = f"---\nconfigs:\n- config_name: {configuration}\n  data_files:\n{files}---\n"
        (folder / "README.md").write_text(card)
        return NAME

    return make


# ---- what is read


def test_sub_folders_are_the_splits(books, tmp_path, capsys):
    """Files outside of them, hidden ones and empty ones are left alone."""
    for name in ("train/.hidden.txt", "train/.git/a.txt", "train/a.rst", "train/._b.txt"):
        write(books / name, b"\xff")
    for name in ("train/empty.txt", "train/nothing.txt.gz"):
        write(books / name, "")
    (books / "train/folder.txt").mkdir()
    write(books / "README.txt", "not a document")
    expected = {
        "train": synthetic_text(80, 0) + "no line end\n\nthe second é\r\nof all\n",
        "validation": "held out\n",
        "test": "another\n\n",
    }
    assert prepare(tmp_path, books) == expected
    said = capsys.readouterr().err
    assert "not read: 1 text files outside" in said and "not read: 1 files of other kinds (.rst)" in said
    (books / "validation").rename(books / "dev")  # beside train/
    assert prepare(tmp_path, books, force=True) == expected
    (books / "dev").rename(books / "validation")
    for split, content in expected.items():
        info = open_tokens(tmp_path / f"out/{split}.bin").info
        counts = len(content.split()), content.count("\n"), len(content.encode())
        assert (info["words"], info["lines"], info["bytes"]) == counts
        assert info["sha256"] == hashlib.sha256(content.encode()).hexdigest()
    assert read_meta(tmp_path / "out") | {"source": str(books), "missing": []} == read_meta(tmp_path / "out")


def test_files_are_split_by_the_hash_of_their_names(pile, tmp_path):
    """So the splits are the same in another folder, uncompressed."""
    contents = prepare(tmp_path, pile)
    check_shares(contents)
    for content in contents.values():
        assert numbers(content) == sorted(numbers(content), key=lambda i: f"{i % 7}/{i}.txt")
    for path in sorted(pile.rglob("*.txt*")):
        raw = path.read_bytes()
        name = path.relative_to(pile).as_posix().removesuffix(".gz")
        write(tmp_path / "elsewhere" / name, gzip.decompress(raw) if path.suffix == ".gz" else raw)
    assert prepare(tmp_path / "b", tmp_path / "elsewhere") == contents


@pytest.mark.parametrize("form", ["rows.jsonl", "rows.jsonl.gz", "folder/rows.parquet", "hub"])
def test_a_row_is_a_document(form, tmp_path, hub):
    """Whole, in one split, in the order of the source. Rows have the same splits in whatever form."""
    source: Path | str = hub(train=TEXTS) if form == "hub" else write_rows(tmp_path / form, TEXTS)
    contents = prepare(tmp_path, source)
    check_shares(contents)
    for content in contents.values():
        assert content == joined([TEXTS[i] for i in sorted(numbers(content))])
    assert contents == prepare(tmp_path / "b", write_rows(tmp_path / "b/other.jsonl", TEXTS))


@pytest.mark.parametrize("large", range(3))
def test_three_documents(tmp_path, large):
    """One in each split, and the large one trains, whatever its hash."""
    for i in range(3):
        write(tmp_path / f"three/{i}.txt", f"document {i} .\n" + synthetic_text(90 if i == large else 1, i))
    found = {split: numbers(content) for split, content in prepare(tmp_path, tmp_path / "three").items()}
    assert found["train"] == [large] and len(found["validation"]) == len(found["test"]) == 1


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


def test_the_same_text_is_in_one_split(tmp_path):
    """Rows are told apart by their text alone: a duplicate of a held-out row is not trained on."""
    contents = prepare(tmp_path, write_rows(tmp_path / "twice.jsonl", TEXTS + TEXTS[::-1]))
    found = {split: numbers(content) for split, content in contents.items()}
    assert all(sorted(n) == sorted(2 * list(set(n))) for n in found.values())


@pytest.mark.parametrize(
    "names",
    [
        [f"data/{split}-00000-of-00001-a09b74b3ef9c3b56.jsonl" for split in ("train", "validation", "test")],
        [f"default/{split}/0000.jsonl" for split in ("train", "validation", "test")],
        ["wiki.train.txt", "wiki.valid.txt", "wiki.test.txt"],
    ],
)
def test_splits_as_others_name_them(tmp_path, names):
    folder = tmp_path / "named"
    for name, texts in zip(names, (TEXTS[:4], TEXTS[4:5], TEXTS[5:6])):
        if name.endswith(".txt"):
            write(folder / name, joined(texts))
        else:
            write_rows(folder / name, texts)
    expected = {"train": joined(TEXTS[:4]), "validation": joined(TEXTS[4:5]), "test": joined(TEXTS[5:6])}
    assert prepare(tmp_path, folder) == expected


def test_a_train_folder_alone_below_the_top_is_split_by_document(tmp_path):
    """As the hub converts a data set that has one split."""
    write_rows(tmp_path / "one" / "default/train/0000.jsonl", TEXTS)
    assert all(prepare(tmp_path, tmp_path / "one").values())


def test_copies_of_the_largest_text_take_no_share_of_a_split(tmp_path):
    """They train, all of them."""
    for seed in range(8):
        rng = random.Random(seed)
        texts = [f"{rng.random()} a row\n" for _ in range(12)] + 3 * ["the largest of them all " * 4 + "\n"]
        contents = prepare(tmp_path / str(seed), write_rows(tmp_path / str(seed) / "rows.jsonl", texts))
        assert contents["train"].count("largest of them all \n") == 3 and all(contents.values())


def test_a_mark_at_the_start_of_a_file_is_no_text(tmp_path):
    for n, book in enumerate(TEXTS[:3]):
        write(tmp_path / "books" / f"{n}.txt", "\ufeff" + book)
    assert "\ufeff" not in "".join(prepare(tmp_path, tmp_path / "books").values())


def test_files_of_splits(tmp_path, capsys):
    """train.jsonl, or the hub's train-00000-of-00002.parquet, in whatever folder."""
    folder = tmp_path / "named"
    write_rows(folder / "data/train-00000-of-00002.jsonl", TEXTS[:2])
    write_rows(folder / "data/train-00001-of-00002.jsonl.gz", TEXTS[2:4])
    write_rows(folder / "validation.parquet", TEXTS[4:5])
    write_rows(folder / "latest.jsonl", TEXTS[:9])
    write(folder / "test.txt", "the end\n")
    expected = {"train": joined(TEXTS[:4]), "validation": joined(TEXTS[4:5]), "test": "the end\n"}
    assert prepare(tmp_path, folder) == expected
    assert "not read: 1 text files" in capsys.readouterr().err
    (folder / "validation.parquet").rename(folder / "valid.parquet")  # WikiText's name
    assert prepare(tmp_path, folder, force=True) == expected
    (folder / "data/train-00000-of-00002.jsonl").unlink()
    (folder / "data/train-00001-of-00002.jsonl.gz").unlink()
    with pytest.raises(UserError, match="has valid.parquet, test.txt and nothing to train on"):
        prepare(tmp_path, folder, force=True)


@pytest.mark.parametrize("ending", [".jsonl", ".txt"])
def test_a_test_split_out_of_the_validation_split(tmp_path, capsys, ending):
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
    assert "no split test: half of validation" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["one.txt", "one.txt.gz", "one.jsonl"])
def test_a_single_document_is_cut(name, tmp_path, capsys):
    """At line ends, in its order, the end held out; and it says so."""
    content, path = synthetic_text(400, 1), tmp_path / name
    contents = prepare(tmp_path, write_rows(path, [content]) if "json" in name else write(path, content))
    assert "".join(contents.values()) == content
    shares = [len(part) / len(content) for part in contents.values()]
    assert shares == pytest.approx([0.9, 0.05, 0.05], abs=0.005)
    assert all(part.endswith("\n") for part in contents.values())
    assert "a single document: 0% to 90% train, 90% to 95% validation" in capsys.readouterr().err
    assert text.folder_name("bytes", str(path)) == "bytes-one"


@pytest.mark.parametrize("space", [" ", "字"])
def test_a_text_of_one_line_is_cut_at_spaces(tmp_path, space):
    """Where it has some; in the shares that are announced."""
    content = space.join(synthetic_text(400, 1).split())
    contents = prepare(tmp_path, write(tmp_path / "line.txt", content))
    assert "".join(contents.values()) == content
    assert [len(p) / len(content) for p in contents.values()] == pytest.approx([0.9, 0.05, 0.05], abs=0.004)
    assert space != " " or all(contents[split].startswith(" ") for split in ("validation", "test"))


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


def test_other_forms_of_rows_and_texts(tmp_path):
    """CSV with line ends in a cell, .md, UTF-8 in a column of bytes. README.md is not read."""
    folder = tmp_path / "forms"
    cells = "".join(f'{i},"{text}"\n' for i, text in enumerate(TEXTS[:100]))
    write(folder / "a.csv.gz", "id,text\n" + cells)
    write_rows(folder / "b.parquet", [text.encode() for text in TEXTS[100:199]])
    write(folder / "c.md", TEXTS[199])
    write(folder / "README.md", "document 7 .\n")
    contents = prepare(tmp_path, folder)
    check_shares(contents)
    assert all(text in "".join(contents.values()) for text in TEXTS)


@pytest.mark.parametrize("form", ["rows.jsonl", "rows.parquet", "hub"])
def test_null_rows_are_counted(form, tmp_path, hub, capsys):
    """Said once, although the text is read several times."""
    rows = [*TEXTS, None, None]
    contents = prepare(tmp_path, hub(train=rows) if form == "hub" else write_rows(tmp_path / form, rows))
    check_shares(contents)
    assert capsys.readouterr().err.count("2 of 202 rows") == 1


def test_two_columns_of_one_name(tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, names=["text", "text"])
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(UserError, match="x.parquet.*'text'"):
        prepare(tmp_path, tmp_path / "x.parquet")


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.csv.gz"])
def test_a_row_without_an_end_is_not_read_whole(tmp_path, monkeypatch, name):
    monkeypatch.setattr(documents, "LONGEST", 1000)
    with pytest.raises(UserError, match=f"{name} has a line of more than 1,000"):
        prepare(tmp_path, write(tmp_path / name, b"text\n" * name.startswith("x.csv") + bytes(5000)))


def test_a_source_that_is_a_loop_of_links(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(FileNotFoundError, match="is not there"):
        prepare(tmp_path, tmp_path / "a")


def test_long_lines_come_in_pieces(monkeypatch):
    monkeypatch.setattr(splits, "BATCH", 50)
    content = "short\n" + "word  and " * 40 + "x" * 300 + " " * 120 + "end\n" + "y" * 49 + "\n" + "z " * 30
    pieces = list(splits.bounded_lines(io.StringIO(content, newline="\n")))
    assert "".join(pieces) == content and pieces[0] == "short\n"
    assert max(map(len, pieces)) <= 150
    # none is cut that has a space near
    whole = [word for piece in pieces if "x" not in piece for word in piece.split()]
    assert whole == [word for word in content.split() if "x" not in word]


# ---- the hub


def test_the_hubs_own_splits(hub, tmp_path, capsys):
    source = hub(train=TEXTS[:4], validation=TEXTS[4:5], test=TEXTS[5:8], unsupervised=TEXTS[9:])
    parts = {"train": TEXTS[:4], "validation": TEXTS[4:5], "test": TEXTS[5:8]}
    assert prepare(tmp_path, source) == {split: joined(texts) for split, texts in parts.items()}
    assert "not read: the splits unsupervised" in capsys.readouterr().err
    assert read_meta(tmp_path / "out")["source"] == NAME


def test_a_split_that_the_hub_lacks(hub, tmp_path, capsys):
    """It is taken out of the train split; the others stay as they are. Without a train split, out of all."""
    contents = prepare(tmp_path, hub(train=TEXTS, test=TEXTS[:2]))
    assert contents["test"] == joined(TEXTS[:2])
    assert sorted(numbers(contents["train"] + contents["validation"])) == list(range(200))
    assert 0.01 <= len(contents["validation"]) / len(contents["train"]) < 0.025
    assert "has no split validation" in capsys.readouterr().err
    contents = prepare(tmp_path / "b", hub(test=TEXTS[:150], extra=TEXTS[150:]))
    assert sorted(numbers(*contents.values())) == list(range(200))


def test_configuration_and_column(hub, tmp_path):
    hub("small", "body", train=TEXTS)
    check_shares(prepare(tmp_path, f"{NAME}:small", column="body"))
    assert text.folder_name("gpt2", f"{NAME}:small") == "gpt2-something-small"
    with pytest.raises(UserError, match=r"cannot be had from the hub.*other"):
        prepare(tmp_path, f"{NAME}:other")
    with pytest.raises(UserError, match=r"split train has no columns? 'text'.*'id', 'body'.*--col"):
        prepare(tmp_path, f"{NAME}:small", force=True)


# ---- kept, changed, refused


def test_kept_until_the_folder_changes(books, tmp_path, monkeypatch):
    prepare(tmp_path, books)
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(corpus, "tokenise_split", lambda *_: pytest.fail("tokenised a second time"))
        assert text.prepare(out, "bytes", str(books)) == text.prepare(out, "bytes", "") == out
    assert is_prepared(out, "bytes", os.path.relpath(books))
    write(books / "test/t.txt", "Another\n\n")  # of the same size
    with pytest.raises(UserError, match=r"test.bin was made from another text .*--force .*--out"):
        prepare(tmp_path, books)
    write(books / "test/t.txt", "longer than before\n")
    with pytest.raises(UserError, match=r"test.bin was made from 9 bytes .* now has 19: use --force"):
        prepare(tmp_path, books)
    assert prepare(tmp_path, books, force=True)["test"] == "longer than before\n"


def test_a_newer_text_is_said_where_it_is_taken_as_it_is(books, tmp_path, monkeypatch, capsys):
    """And prepare.py, which looks, finds it unchanged."""
    root = tmp_path / "data"
    folder = prepared("text", "bytes", str(books), root)
    capsys.readouterr()
    assert prepared("text", "bytes", str(books), root) == folder and capsys.readouterr().out == ""
    file = next(path for path in books.rglob("*") if path.is_file())
    later = (folder / "meta.json").stat().st_mtime + 5
    os.utime(file, (later, later))
    prepared("text", "bytes", str(books), root)
    assert f"{file} is newer than the prepared {folder}" in capsys.readouterr().out
    os.utime(file)
    text.prepare(folder, "bytes", str(books))
    capsys.readouterr()
    prepared("text", "bytes", str(books), root)
    assert capsys.readouterr().out == ""


def test_folders_stand_side_by_side(books, pile, tmp_path, monkeypatch):
    monkeypatch.setattr("data.corpus.DATA", tmp_path)
    assert module.command([f"--source={books}", "--tokenizer=bytes"]) == 0
    assert prepared("text", "bytes", f"{pile}/", tmp_path) == tmp_path / "text/bytes-pile"
    for folder in (books, pile):
        assert is_prepared(tmp_path / f"text/bytes-{folder.name}", "bytes", str(folder))
        assert prepared("text", "bytes", str(folder), tmp_path).name == f"bytes-{folder.name}"


def test_two_sources_of_one_name(tmp_path, monkeypatch):
    """rows.jsonl and rows.parquet in one folder: the remedy is said before the second is read."""
    first, second = (write_rows(tmp_path / f"rows.{kind}", TEXTS) for kind in ("jsonl", "parquet"))
    assert text.folder_name("bytes", str(first)) == text.folder_name("bytes", str(second))
    prepare(tmp_path, first)
    monkeypatch.setattr(module, "measured", lambda *_: pytest.fail("read it"))
    with pytest.raises(UserError, match="rows.jsonl', not '.*rows.parquet': rename one .*--force.*--out"):
        prepare(tmp_path, second)


# ---- a user's mistakes


def flipped(raw: bytes) -> bytes:
    damaged = bytearray(gzip.compress(raw, mtime=0))
    damaged[len(damaged) // 2] ^= 255
    return bytes(damaged)


GOOD, ZIPPED = b'{"text": "a text"}\n', gzip.compress(LONG, mtime=0)
DAMAGE = [
    ("train/x.txt", b"caf\xe9\n", "x.txt is not UTF-8 text"),
    ("train/x.txt", "utf-16".encode("utf-16"), "x.txt is not UTF-8 text"),
    ("train/x.txt", LONG * 300 + b"\xe2\x82", "x.txt is not UTF-8 text"),  # far from its beginning
    ("train/x.txt.gz", gzip.compress(LONG + bytes(9), mtime=0), "x.txt.gz is not text"),
    ("train/x.txt.gz", gzip.compress(LONG + b"\xff", mtime=0), "x.txt.gz is not UTF-8 text"),
    ("train/x.txt.gz", b"no gzip file", "x.txt.gz is not a whole gzip file"),
    ("train/x.txt.gz", ZIPPED[:-9], "x.txt.gz is not a whole gzip file"),
    ("train/x.txt.gz", flipped(LONG), "x.txt.gz is not"),
    ("train/x.txt.gz", ZIPPED + b"more", "x.txt.gz is not a whole gzip file"),
    ("train/b.txt.gz", ZIPPED, "both train/b.txt and train/b.txt.gz: keep one"),
    ("test/t.txt", b"", "has no text for test"),
    ("train/x.jsonl", GOOD + b'{"text": "a}\n', "x.jsonl, line 2 is not JSON"),
    ("train/x.jsonl", GOOD + b'["text"]\n', "x.jsonl, line 2 "),
    ("train/x.jsonl", GOOD + b"[" * 10**5 + b"\n", "x.jsonl, line 2 is not JSON"),
    ("train/x.jsonl", GOOD + b'{"body": "a", "id": 1}\n', "x.jsonl, line 2 "),
    ("train/x.jsonl", b'{"text": 3}\n', "x.jsonl, row 1"),
    ("train/x.jsonl", b'{"text": "\\ud800"}\n', "x.jsonl, row 1"),
    ("train/x.csv", b'text\n"a', "x.csv"),
    ("train/x.csv", b"id\n1\n", "x.csv has no column"),
    ("train/x.jsonl", b'{"text": "caf\xe9"}\n', "x.jsonl is not UTF-8 text"),
    ("train/x.jsonl.gz", GOOD, "x.jsonl.gz is not a whole gzip file"),
    ("train/x.parquet", b"PAR1 and nothing more", "x.parquet cannot be read as parquet"),
    ("train/x.parquet", b"", "x.parquet cannot be read as parquet"),
]


@pytest.mark.parametrize("name, raw, says", DAMAGE)
def test_damage_is_named_before_any_work(books, tmp_path, name, raw, says):
    (books / name).write_bytes(raw)
    with pytest.raises(UserError) as caught:
        prepare(tmp_path, books)
    assert says in str(caught.value) and str(books) in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name, content, says", [
    ("empty.txt", "", r"has 0 documents that are not empty.*train/, validation/ and test/"),
    ("empty.jsonl", "\n", "has 0 documents that are not empty"),
    ("two.jsonl", '{"text": "a"}\n{"text": "b"}\n', "has 2 documents .* too few"),
    ("line.txt", "a text of one line", "has no text for validation and test"),
    ("x.rst", "text", f"x.rst is no {', '.join(ENDINGS)}: convert it"),
    ("text", "text", "text is no .txt"),
])  # fmt: skip
def test_files_that_are_no_corpus(name, content, says, tmp_path):
    with pytest.raises(UserError, match=says):
        prepare(tmp_path, write(tmp_path / name, content))
    assert not (tmp_path / "out").exists()


def test_columns(tmp_path):
    path = write_rows(tmp_path / "x.parquet", TEXTS)
    for column, says in (("body", r"'body'.*'id', 'text'.*--column"), ("id", r"x.parquet, row 1: 'id'")):
        with pytest.raises(UserError, match=says):
            prepare(tmp_path, path, column=column)
    two = [json.dumps({"text": text, "other": text.upper()}) + "\n" for text in TEXTS]
    prepare(tmp_path, write(tmp_path / "two.jsonl", "".join(two)))
    with pytest.raises(UserError, match="was made from .*--force"):  # another column is another text
        prepare(tmp_path, tmp_path / "two.jsonl", column="other")


def test_wrong_sources(books, tmp_path, monkeypatch):
    import datasets

    def fails(*_: str | None) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", fails)
    with pytest.raises(UserError, match=r"'a/b' is no file or folder here.*no route.*network"):
        prepare(tmp_path, "a/b")
    for source in ("imdb", str(tmp_path / "nowhere"), "a/b/c"):  # names that the hub is not asked for
        with pytest.raises(FileNotFoundError, match="is not there: give a folder.*owner/name"):
            prepare(tmp_path, source)
    with pytest.raises(UserError, match="--source=FOLDER"):
        text.prepare(tmp_path / "out", "bytes", "")
    with pytest.raises(UserError, match="no word list"):
        text.prepare(tmp_path / "out", "words", str(books))
    assert not (tmp_path / "out").exists()


# ---- through the house


def test_train_augment_and_compare(pile, tmp_path, monkeypatch):
    """dataset = "text" and its folder are all that a run needs."""
    for i in range(3):  # enough held-out text for the table
        write(pile / f"more/{i}.txt", synthetic_text(150, i))
    monkeypatch.chdir(tmp_path)
    folder = prepared("text", "bpe300", str(pile), tmp_path)
    settings = TINY | dict(dataset="text", source=str(pile), max_steps=2, block_size=64)
    assert train_in_process(TrainConfig(**settings | dict(name="run", out_dir="run")), folder) == 0
    monkeypatch.setattr(augment, "prepared", lambda *_: folder)
    labels = dict(head="sigmoid", labels="hard", teacher="run", candidates=3, name="sig", out_dir="sig")
    assert train_in_process(TrainConfig(**settings | labels), folder, augment.main) == 0
    assert checkpoint.load("run/last").config["data"] == str(folder)
    assert list(folder.glob("*label*"))
    evaluate = "run --device=cpu --split=validation --texts=2 --prompt_tokens=6 --new_tokens=57 --halves=2"
    assert eval_diversity.main([*evaluate.split(), "--out=e"]) == 0
    row = Store(Path("e.jsonl")).rows("text")[0]
    assert row["ppl_word"] > 1 and row["bits_per_byte"] > 0
