"""data/text/prepare.py: folders of text files, their splits, and what is wrong with them."""

import gzip
import hashlib
import io
import os
import signal
from itertools import chain
from pathlib import Path

import pytest
from conftest import TINY, synthetic_text

import augment
import eval_diversity
import train
import training.text
from data import corpus, splits
from data.prepared import SPLITS, is_prepared, load_tokenizer, prepared, read_meta
from data.text import prepare as text
from data.tokens import open_tokens
from measures.store import Store
from runtime import checkpoint
from runtime.errors import UserError

LONG = synthetic_text(50, 3).encode()


def write(path: Path, content: str | bytes) -> Path:
    """`content` as it is, compressed where the name says so."""
    raw = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
    return path


def prepare(tmp_path: Path, source: Path, **options: bool) -> Path:
    return text.corpus.prepare(tmp_path / "out", "bpe300", str(source), **options)


def split_texts(folder: Path) -> dict[str, str]:
    """The text of each split, from its tokens."""
    tokenizer = load_tokenizer(folder)
    return {split: tokenizer.decode(open_tokens(folder / f"{split}.bin").ids) for split in SPLITS}


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
    """A folder of 200 documents and no splits, half of them compressed. Each says its own name."""
    folder = tmp_path / "pile"
    lines = LONG.decode().splitlines(keepends=True)
    for i in range(200):
        end = ".gz" if i % 2 else ""
        some = "".join(lines[i % 40 : i % 40 + 1 + i % 3])
        write(folder / f"{i % 7}/{i}.txt{end}", f"document {i} .\n{some}")
    return folder


def names_in(content: str) -> list[int]:
    return [int(line.split()[1]) for line in content.splitlines() if line.startswith("document ")]


# ---- what is read


def test_sub_folders_are_the_splits(books, tmp_path):
    out = prepare(tmp_path, books)
    expected = {
        "train": synthetic_text(80, 0) + "no line end\n\nthe second é\r\nof all\n",
        "validation": "held out\n",
        "test": "another\n\n",
    }
    assert split_texts(out) == expected
    for split, content in expected.items():
        info = open_tokens(out / f"{split}.bin").info
        assert (info["words"], info["lines"]) == (len(content.split()), content.count("\n"))
        assert info["bytes"] == len(content.encode())
        assert info["sha256"] == hashlib.sha256(content.encode()).hexdigest()
    assert read_meta(out)["source"] == str(books) and read_meta(out)["missing"] == []


def test_other_files_are_left_alone(books, tmp_path, capsys):
    before = split_texts(prepare(tmp_path, books))
    for name in ("train/.hidden.txt", "train/.git/a.txt", "train/a.md", "train/._b.txt"):
        write(books / name, b"\xff")
    write(books / "train/empty.txt", "")
    write(books / "train/nothing.txt.gz", "")
    (books / "train/folder.txt").mkdir()
    write(books / "README.txt", "not a document")
    assert split_texts(prepare(tmp_path, books)) == before
    assert "not read: 1 text files outside" in capsys.readouterr().err


def test_split_by_hash(pile, tmp_path):
    texts = split_texts(prepare(tmp_path, pile))
    found = {split: names_in(content) for split, content in texts.items()}
    assert sorted(chain.from_iterable(found.values())) == list(range(200))  # each in one split
    total = sum(len(content.encode()) for content in texts.values())
    for split in ("validation", "test"):
        assert 0.01 <= len(texts[split].encode()) / total < 0.025
    order = {split: sorted(names, key=lambda i: f"{i % 7}/{i}.txt") for split, names in found.items()}
    assert found == order


def test_the_split_is_the_same_elsewhere(pile, tmp_path):
    """In another folder, uncompressed."""
    for path in sorted(pile.rglob("*.txt*")):
        raw = path.read_bytes()
        name = path.relative_to(pile).as_posix().removesuffix(".gz")
        write(tmp_path / "elsewhere" / name, gzip.decompress(raw) if path.suffix == ".gz" else raw)
    here = text.corpus.prepare(tmp_path / "a", "bpe300", str(pile))
    there = text.corpus.prepare(tmp_path / "b", "bpe300", str(tmp_path / "elsewhere"))
    assert split_texts(here) == split_texts(there)


@pytest.mark.parametrize("large", range(3))
def test_three_documents(tmp_path, large):
    """One in each split, and the large one trains, whatever its hash."""
    folder = tmp_path / "three"
    for i in range(3):
        write(folder / f"{i}.txt", f"document {i} .\n" + synthetic_text(90 if i == large else 1, i))
    found = {split: names_in(content) for split, content in split_texts(prepare(tmp_path, folder)).items()}
    assert found["train"] == [large] and len(found["validation"]) == len(found["test"]) == 1


def test_long_lines_come_in_pieces(monkeypatch):
    monkeypatch.setattr(splits, "BATCH", 50)
    content = "short\n" + "word  and " * 40 + "x" * 300 + " " * 120 + "end\n" + "y" * 49 + "\n" + "z " * 30
    pieces = list(splits.bounded_lines(io.StringIO(content, newline="\n")))
    assert "".join(pieces) == content and pieces[0] == "short\n"
    assert max(map(len, pieces)) <= 150
    words = content.split()
    assert [word for piece in pieces if "x" not in piece for word in piece.split()] == [
        word for word in words if "x" not in word
    ]  # none is cut that has a space near


# ---- kept, changed, refused


def test_kept_until_the_folder_changes(books, tmp_path, monkeypatch):
    out = prepare(tmp_path, books)
    with monkeypatch.context() as patch:
        patch.setattr(corpus, "tokenise_split", lambda *_: pytest.fail("tokenised a second time"))
        assert prepare(tmp_path, books) == text.corpus.prepare(out, "bpe300", "") == out
    assert is_prepared(out, "bpe300", os.path.relpath(books))
    write(books / "test/t.txt", "Another\n\n")  # of the same size
    with pytest.raises(UserError, match=r"test.bin was made from another text .*--force .*--out"):
        prepare(tmp_path, books)
    write(books / "test/t.txt", "longer than before\n")
    with pytest.raises(UserError, match=r"test.bin was made from 9 bytes .* now has 19: use --force"):
        prepare(tmp_path, books)
    assert split_texts(prepare(tmp_path, books, force=True))["test"] == "longer than before\n"


def test_folders_stand_side_by_side(books, pile, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("data.corpus.DATA", tmp_path)
    assert text.command([f"--source={books}", "--tokenizer=bpe300"]) == 0
    assert prepared("text", "bpe300", f"{pile}/", tmp_path) == tmp_path / "text/bpe300-pile"
    for folder in (books, pile):
        assert is_prepared(tmp_path / f"text/bpe300-{folder.name}", "bpe300", str(folder))
        assert prepared("text", "bpe300", str(folder), tmp_path).name == f"bpe300-{folder.name}"


def test_another_folder_is_refused(books, pile, tmp_path):
    prepare(tmp_path, books)
    with pytest.raises(UserError, match="was prepared from source .*books.*--out"):
        prepare(tmp_path, pile)


# ---- a user's mistakes


def cut(raw: bytes) -> bytes:
    return gzip.compress(raw, mtime=0)[:-9]


def flip(raw: bytes) -> bytes:
    damaged = bytearray(gzip.compress(raw, mtime=0))
    damaged[len(damaged) // 2] ^= 255
    return bytes(damaged)


DAMAGE = [
    ("train/x.txt", b"caf\xe9\n", "x.txt is not UTF-8 text"),
    ("train/x.txt", "utf-16".encode("utf-16"), "x.txt is not UTF-8 text"),
    ("train/x.txt", gzip.compress(LONG, mtime=0), "x.txt is not UTF-8 text"),
    ("train/x.txt", LONG * 300 + b"\xe2\x82", "x.txt is not UTF-8 text"),  # far from its beginning
    ("train/x.txt.gz", gzip.compress(LONG + b"\xff", mtime=0), "x.txt.gz is not UTF-8 text"),
    ("train/x.txt.gz", b"no gzip file", "x.txt.gz is not a whole gzip file"),
    ("train/x.txt.gz", cut(LONG), "x.txt.gz is not a whole gzip file"),
    ("train/x.txt.gz", flip(LONG), "x.txt.gz is not"),
    ("train/x.txt.gz", gzip.compress(LONG, mtime=0) + b"more", "x.txt.gz is not a whole gzip file"),
    ("train/b.txt.gz", gzip.compress(LONG, mtime=0), "both train/b.txt and train/b.txt.gz: keep one"),
    ("test/t.txt", b"", "has no text for test"),
]


@pytest.mark.parametrize("name, raw, says", DAMAGE)
def test_damage_is_named_before_any_work(books, tmp_path, name, raw, says):
    (books / name).write_bytes(raw)
    with pytest.raises(UserError) as caught:
        prepare(tmp_path, books)
    assert says in str(caught.value) and str(books) in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("count", (0, 2))  # a single one is cut
def test_too_few_documents(tmp_path, count):
    for i in range(count):
        write(tmp_path / f"few/{i}.txt", LONG)
    (tmp_path / "few").mkdir(exist_ok=True)
    with pytest.raises(UserError, match=f"has {count} documents.*train/, validation/ and test/"):
        prepare(tmp_path, tmp_path / "few")


def test_wrong_sources(books, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere is not there: give a folder"):
        prepare(tmp_path, tmp_path / "nowhere")
    with pytest.raises(UserError, match="--source=FOLDER"):
        text.corpus.prepare(tmp_path / "out", "bpe300", "")
    with pytest.raises(UserError, match="no word list"):
        text.corpus.prepare(tmp_path / "out", "words", str(books))
    assert not (tmp_path / "out").exists()


# ---- through the house


def test_train_augment_and_compare(pile, tmp_path, monkeypatch):
    """dataset = "text" and its folder are all that a run needs."""
    for i in range(3):  # enough held-out text for the table
        write(pile / f"more/{i}.txt", synthetic_text(150, i))
    monkeypatch.chdir(tmp_path)
    for module in (training.text, augment):
        monkeypatch.setattr(module, "prepared", lambda *a: prepared(*a, root=tmp_path))
    kept = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    settings = TINY | dict(dataset="text", source=str(pile), max_steps=2, block_size=64)
    flags = [f"--{key}={value}" for key, value in settings.items()]
    labels = ["--head=sigmoid", "--labels=hard", "--teacher=run", "--candidates=3"]
    try:
        assert train.main([*flags, "--name=run", "--out_dir=run"]) == 0
        assert augment.main([*flags, *labels, "--name=sig", "--out_dir=sig"]) == 0
    finally:
        for s, handler in kept.items():
            signal.signal(s, handler)
    folder = tmp_path / "text/bpe300-pile"
    assert checkpoint.load("run/last").config["data"] == str(folder)
    assert list(folder.glob("*label*"))
    evaluate = (
        "run --device=cpu --split=validation --texts=2 --prompt_tokens=6 --new_tokens=50 --halves=2 --out=e"
    )
    assert eval_diversity.main(evaluate.split()) == 0
    row = Store(Path("e.jsonl")).rows("text")[0]
    assert row["ppl_word"] > 1 and row["bits_per_byte"] > 0
