"""Token files, tokenizers, prepared folders and the corpora's prepare.py.

Real text is read only where the environment names it.
"""

import importlib.util
import json
import os
import shutil
import sys
from codecs import BOM_UTF8
from pathlib import Path

import numpy as np
import pytest

import train
from common.errors import UserError
from config.defaults import TrainConfig
from data import tokenizers
from data.open import load_tokenizer, prepared
from data.prepare import corpus
from data.prepare.bpe import short_words, train_bpe
from data.prepare.lines import file_lines
from data.text import prepare as text_of_ones_own
from data.tokenizers import BPETokenizer, ByteTokenizer, GPT2Tokenizer, WordTokenizer, ids_of
from data.tokens import SPLITS, open_tokens, read_made, write_tokens
from data.wikitext103 import prepare as wikitext
from tests.fixtures import TINY, handlers_kept, own_text
from training.run import Run

ROOT = Path(__file__).resolve().parents[1]
TEXT = (
    " \n = Lobster = \n \n The lobster , caf\u00e9 @-@ blue ,\rcosts\u2028 5 @.@ 0 \u20ac \u2014 "
    "<unk> \u65e5\u672c . \n \n"
)
ODD = ["", " ", "\n", "\r\n", "a\r\nb\rc", "\x00\x01\x1c\x7f", "\ufeff\u2028\u0085"]
ODD += ["<|endoftext|>", "\u0120\u010a"]
ODD += ["\U0001f469\u200d\U0001f680 \u00e9 e\u0301", "  two  spaces\t\ttabs ", "it's WE'LL 123456"]
ODD += ["\u05e9\u05dc\u05d5\u05dd \u4f60\u597d"]


@pytest.fixture(scope="module")
def bpe() -> BPETokenizer:
    return train_bpe([TEXT], 270)


@pytest.fixture
def gpt2() -> GPT2Tokenizer:
    if not os.environ.get("TIKTOKEN_CACHE_DIR"):
        pytest.skip("set TIKTOKEN_CACHE_DIR to a folder with tiktoken's gpt2 files")
    return GPT2Tokenizer()


@pytest.fixture
def official() -> Path:
    folder = os.environ.get("WIKITEXT103_DIR")
    if not folder or not Path(folder).is_dir():
        pytest.skip("set WIKITEXT103_DIR to the folder with wiki.valid.tokens and wiki.test.tokens")
    return Path(folder)


@pytest.fixture
def wiki(tmp_path: Path) -> Path:
    """A folder of wiki.*.tokens files, none of them official."""
    folder = tmp_path / "wiki"
    folder.mkdir()
    for n, name in enumerate(("train", "valid", "test"), 2):
        (folder / f"wiki.{name}.tokens").write_bytes((TEXT * n).encode())
    return folder


def to_parquet(wiki: Path, folder: Path, shards: int = 2) -> Path:
    """The hub's files for the wiki.*.tokens in `wiki`: blank lines as "", the train split in shards."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir(parents=True)
    for split, short in wikitext.NAMES.items():
        for file in wiki.glob(f"wiki.{short}.*tokens"):
            lines = file.read_bytes().decode().split("\n")[:-1]
            rows = ["" if not line.strip() else line + "\n" for line in lines]
            for i in range(shards):
                part = pyarrow.table({"text": rows[i * len(rows) // shards : (i + 1) * len(rows) // shards]})
                pyarrow.parquet.write_table(part, folder / f"{split}-{i:05}-of-{shards:05}.parquet")
    return folder


def content(folder: Path) -> dict[str, object]:
    """All that a prepared folder says but of its source: the digests of its files among it."""
    own = {"source", "command", "stamp", "source_sha256"}
    return {key: value for key, value in read_made(folder).items() if key not in own}


# ---- token files ---------------------------------------------------------------------------------


def test_a_prompt_is_cut_as_the_text_is(gpt2, bpe):
    text, lines = " a\n\n\nb \x0bc\n", [" a\n", "\n", "\n", "b \x0bc\n"]
    for tokenizer in (gpt2, bpe, ByteTokenizer()):
        assert ids_of(text, tokenizer) == tokenizer.encode_each(lines).tolist()
    assert ids_of(text, gpt2) != gpt2.encode(text) and ids_of("", gpt2) == []


@pytest.mark.parametrize("vocab_size, width", [(257, 2), (65536, 2), (65537, 4), (2**31, 4)])
def test_round_trip(tmp_path: Path, vocab_size: int, width: int) -> None:
    ids, path = np.array([0, 5, vocab_size - 1, 7]), tmp_path / "train.bin"
    written = write_tokens(path, [ids[:3], ids[:0], ids[3:]], vocab_size)
    assert written.tolist() == ids.tolist() and written.dtype.itemsize == width
    assert not written.flags.writeable
    assert path.stat().st_size == 32 + 4 * width and path.read_bytes()[:12] == b"NHTOKENS\1\0\0\0"
    assert [path.name for path in tmp_path.iterdir()] == ["train.bin"]


@pytest.mark.parametrize("ids", [[3, 300], [-1, 3], []])
def test_bad_ids_are_refused(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(ValueError, match="train.bin"):
        write_tokens(tmp_path / "train.bin", [np.array(ids, int)], 300)
    assert not list(tmp_path.iterdir())


# ---- tokenizers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["bpe", "gpt2"])
def test_any_text_round_trips(which: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(which)
    texts = ODD + [chr(i) for i in range(0x250)] + [TEXT]
    encoded = [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_each(texts).tolist() == [i for ids in encoded for i in ids]
    apart = ["<|endof", "text|>"]
    for each in (["a", "<|endoftext|>", " b"], apart, [" ", "\n", "\n", " a"], ["", ""], ["a"]):
        assert tokenizer.encode_each(each).tolist() == [i for text in each for i in tokenizer.encode(text)]
    assert [tokenizer.decode(ids) for ids in encoded] == texts
    assert max(max(ids, default=0) for ids in encoded) < tokenizer.vocab_size
    assert len(tokenizer.encode("<|endoftext|>")) > 1
    assert tokenizer.decode(tokenizer.encode("\u20ac")[:1]) in ("\ufffd", "\u20ac")


def test_words(tmp_path: Path) -> None:
    tokenizer = WordTokenizer.of(["the", "cat", ".", "\n", "the."])
    text = "the cat .\n\nthe. cat\n"
    ids, ends = [0, 1, 2, 3, 3, 4, 1, 3], (0, 3, 7, 9, 10, 11, 15, 19, 20)
    assert tokenizer.encode(text) == tokenizer.encode("  " + text.replace(" ", "  ")) == ids
    assert tokenizer.decode(np.array(ids)) == text and tokenizer.encode("") == []
    assert [tokenizer.decode(ids[:n]) for n in range(9)] == [text[:end] for end in ends]  # as it is streamed
    assert tokenizer.encode_each(["the", "cat cat"]).tolist() == [0, 1, 1]
    tokenizer.save(tmp_path)
    loaded = tokenizers.read_tokenizer(tmp_path / "tokenizer.json")
    assert isinstance(loaded, WordTokenizer) and (loaded.name, loaded.vocab_size) == ("words", 5)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode(text) == ids and loaded.decode(ids) == text
    assert WordTokenizer.of(["cat", "the", ".", "\n", "the."]).fingerprint != tokenizer.fingerprint
    with pytest.raises(UserError, match="'thee'"):
        tokenizer.encode("thee dog and the cat")


@pytest.mark.parametrize("word", ["a", "-", " ", "\u4e00", "a1"])
def test_a_word_without_an_end_is_trained_on_in_pieces(word: str) -> None:
    """Of 20 MB, in whose square the time would grow."""
    line = f"It is {word * 4096}! What {word * 999} is."
    pieces = list(short_words([line, TEXT]))
    assert "".join(pieces) == line + TEXT and pieces[-1] == TEXT and len(pieces) > 4
    split = tokenizers.tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    words = [end - start for piece in pieces for _, (start, end) in split(piece)]
    assert max(words) <= 1001  # with the space before it


# ---- prepared folders ----------------------------------------------------------------------------


def test_wiki_folder(wiki: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = wikitext.corpus.prepare(tmp_path / "out", "bpe270", str(wiki))
    tokenizer, is_prepared = load_tokenizer(out), wikitext.corpus.is_prepared
    valid = (wiki / "wiki.valid.tokens").read_bytes()
    lines = [line.encode() for line in file_lines(wiki / "wiki.valid.tokens")]
    assert lines == [line + b"\n" for line in valid.split(b"\n")[:-1]]
    assert tokenizer.decode(open_tokens(out / "validation.bin").ids).encode() == valid
    assert open_tokens(out / "train.bin").info["complete"] is False
    assert "train is partial" in capsys.readouterr().err
    assert is_prepared(out, "bpe270", str(wiki)) and is_prepared(out, "bpe270", os.path.relpath(wiki))
    for another in (("bpe271",), ("bpe270", str(tmp_path))):
        with pytest.raises(UserError, match="was prepared with"):
            is_prepared(out, *another)
    (wiki / "wiki.valid.tokens").write_bytes(BOM_UTF8 + valid)
    for force in (True, False):  # a mark at the start is no text
        wikitext.corpus.prepare(out, "bpe270", str(wiki), force=force)
    assert tokenizer.decode(open_tokens(out / "validation.bin").ids).encode() == valid


def test_what_was_interrupted_leaves_nothing_and_is_not_there(wiki, tmp_path, monkeypatch) -> None:
    out, done = tmp_path / "out", []
    real = corpus.tokenise

    def second_fails(path: Path, *rest: object) -> object:
        done.append(path.stem)
        if len(done) == 2:
            raise KeyboardInterrupt
        return real(path, *rest)

    monkeypatch.setattr(corpus, "tokenise", second_fails)
    with pytest.raises(KeyboardInterrupt):
        wikitext.corpus.prepare(out, "bpe270", str(wiki))
    assert not out.exists()
    (out / ".new").mkdir(parents=True)  # of one that was killed
    assert not wikitext.corpus.is_prepared(out, "bpe270")
    for force in (False, True):
        wikitext.corpus.prepare(out, "bpe270", str(wiki), force=force)
        assert wikitext.corpus.is_prepared(out, "bpe270") and done[-3:] == [*SPLITS]
        assert sorted(path.stem for path in out.iterdir()) == sorted([*SPLITS, "manifest", "tokenizer"])
    monkeypatch.setattr(corpus, "tokenise", lambda *_: sys.exit("full"))
    with pytest.raises(SystemExit):  # what was there stays until all of the new is
        wikitext.corpus.prepare(out, "bytes", str(wiki), force=True)
    assert wikitext.corpus.prepare(out, "bpe270", str(wiki)) == out


def test_the_first_lines_of_train(wiki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (wiki / "wiki.train.tokens").read_bytes().split(b"\n")[:-1]
    out = wikitext.corpus.prepare(tmp_path / "out", "bpe270", str(wiki), lines=7)
    read = load_tokenizer(out).decode(open_tokens(out / "train.bin").ids).encode()
    assert read == b"".join(line + b"\n" for line in text[:7])
    assert open_tokens(out / "train.bin").info["complete"] is False
    assert [open_tokens(out / f"{split}.bin").info["lines"] for split in SPLITS] == [7, 15, 20]
    monkeypatch.setattr(wikitext, "load", None)  # it is not asked for a text that would be refused
    for source in (str(wiki), ""):
        assert wikitext.corpus.is_prepared(out, "bpe270", source)  # as train.py asks
        with pytest.raises(UserError, match="lines 7, not 0"):
            wikitext.corpus.prepare(out, "bpe270", source, lines=0)
    assert len(text) == 10
    with pytest.raises(UserError, match="lines"):
        wikitext.corpus.prepare(tmp_path / "none", "bpe270", str(wiki), lines=11)


@pytest.mark.parametrize("place", [".", wikitext.CONFIG])
def test_parquet_equals_text(wiki: Path, tmp_path: Path, place: str) -> None:
    to_parquet(wiki, tmp_path / "hub" / place)
    ours = wikitext.corpus.prepare(tmp_path / "a", "bpe270", str(tmp_path / "hub"))
    theirs = wikitext.corpus.prepare(tmp_path / "b", "bpe270", str(wiki))
    a, b = content(ours), content(theirs)
    assert a == b and len(a["files"]) == 4


# ---- the command line ----------------------------------------------------------------------------


def test_the_corpus_of_the_docs(tmp_path, monkeypatch) -> None:
    """The whole program on the page, from its --help to a prepared folder."""
    page = (ROOT / "docs/your_own_text.md").read_text()
    program = tmp_path / "data/proverbs/prepare.py"
    program.parent.mkdir(parents=True)
    program.write_text(page.partition("```python\n")[2].partition("```")[0])
    spec = importlib.util.spec_from_file_location("proverbs", program)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "proverbs", module)
    spec.loader.exec_module(module)
    lines = [f"proverb {i} .\n" for i in range(500)]
    (tmp_path / "proverbs.txt").write_text("".join(lines))
    monkeypatch.setattr(corpus, "DATA", tmp_path / "data")
    assert module.main([f"--source={tmp_path / 'proverbs.txt'}"]) == 0
    tokenizer, folder = load_tokenizer(tmp_path / "data/proverbs/bytes"), tmp_path / "data/proverbs/bytes"
    for split, part in {"train": lines[200:], "validation": lines[:100], "test": lines[100:200]}.items():
        assert tokenizer.decode(open_tokens(folder / f"{split}.bin").ids) == "".join(part)


# ---- the official text ---------------------------------------------------------------------------


def test_official_counts(official: Path, gpt2: GPT2Tokenizer, tmp_path: Path) -> None:
    out = wikitext.corpus.prepare(tmp_path / "a", "gpt2", str(official))
    counts = (1_142_309, 3_760, 213_886, 249_735), (1_281_077, 4_358, 241_211, 285_234)
    for split, expected in zip(("validation", "test"), counts):
        ids, info, *_ = open_tokens(out / f"{split}.bin")
        assert (info["bytes"], info["lines"], info["words"], info["tokens"]) == expected
        assert info["complete"] is True
        text = (official / f"wiki.{wikitext.NAMES[split]}.tokens").read_bytes().decode()
        assert ids.tolist() == gpt2.encode(text)  # line by line is the whole text at once
    to_parquet(official, tmp_path / "hub" / wikitext.CONFIG)
    assert content(wikitext.corpus.prepare(tmp_path / "b", "gpt2", str(tmp_path / "hub"))) == content(out)


@pytest.fixture(scope="module")
def novel(tmp_path_factory) -> tuple[Path, Path]:
    """(a source, its prepared folder)."""
    home = tmp_path_factory.mktemp("novel")
    source = own_text(home / "novel")
    return source, prepared("text", "bpe300", str(source), home)


DAMAGE = lambda old: old[:-2], lambda old: bytes(len(old)), None
DAMAGE += (lambda old: old[:-10] + bytes([old[-10] ^ 1]) + old[-9:],)  # another id, which there is, too


@pytest.mark.parametrize("change", DAMAGE)
@pytest.mark.parametrize("name", ["test.bin", "tokenizer.json"])
def test_a_damaged_file_of_a_prepared_folder_is_named_with_the_command(novel, name, change, tmp_path):
    source, folder = novel
    out = shutil.copytree(folder, tmp_path / "out")
    old = (folder / name).read_bytes()
    (out / name).write_bytes(change(old)) if change else (out / name).unlink()
    reads = (lambda: open_tokens(out / name)) if name == "test.bin" else lambda: load_tokenizer(out)
    for read in reads, lambda: text_of_ones_own.corpus.prepare(out, "bpe300", str(source)):
        with pytest.raises((UserError, FileNotFoundError)) as caught:
            read()
        assert name in str(caught.value)
        assert not change or f"--source={source} --out={out} --force" in str(caught.value)
    flags = f"--out={out}", "--tokenizer=bpe300", f"--source={source}", "--force"
    assert text_of_ones_own.main([*flags]) == 0 and (out / name).read_bytes() == old


def test_counts_that_were_edited_are_named(novel, tmp_path):
    """Half of the words make twice the nats a word."""
    out = shutil.copytree(novel[1], tmp_path / "out")
    made = json.loads((out / "manifest.json").read_text())
    made["splits"]["test"]["words"] //= 2
    (out / "manifest.json").write_text(json.dumps(made))
    for read in (lambda: open_tokens(out / "test.bin"), lambda: load_tokenizer(out)):
        with pytest.raises(UserError, match="manifest.json"):
            read()


def test_an_earlier_versions_folder_is_refused(tmp_path):
    folder = tmp_path / "text/bytes"
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"tokenizer": "bytes", "source": "/a b, c"}))
    for read in (lambda: prepared("text", "bytes", "", tmp_path), lambda: load_tokenizer(folder)):
        with pytest.raises(UserError, match=str(folder)):
            read()


def test_files_that_are_nobodys_are_left_alone(novel, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/tokenizer.json").write_text("{}")  # of some model
    with pytest.raises(UserError, match="manifest.json"):
        text_of_ones_own.corpus.prepare(tmp_path / "out", "bpe300", str(novel[0]))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tokenizer.json"]


def test_a_reader_of_a_prepared_folder_writes_nothing(novel, monkeypatch):
    """It may belong to somebody else."""
    source, folder = novel
    monkeypatch.setattr(corpus, "locked", lambda *_: pytest.fail("a lock"))
    before = folder.stat().st_mtime_ns
    assert prepared("text", "bpe300", str(source), folder.parents[1]) == folder
    open_tokens(folder / "train.bin"), load_tokenizer(folder)
    assert folder.stat().st_mtime_ns == before


def test_a_training_takes_any_prepared_folder(novel, tmp_path):
    """In place of its configuration's dataset, tokenizer and source; and goes on where it is now."""
    folder, out = shutil.copytree(novel[1], tmp_path / "elsewhere"), tmp_path / "run"
    own = dict(data=str(folder), dataset="wikitext103", tokenizer="gpt2", lr_decay_steps=6)
    config = TrainConfig(**TINY | own | dict(name="run", out_dir=str(out)))
    with handlers_kept():
        assert train.main([f"--{key}={value}" for key, value in vars(config).items()]) == 0
        c = Run(out, "last").config
        assert (c.dataset, c.tokenizer, c.data) == ("text", "bpe300", str(folder))
        assert train.main(["--resume", str(out), "--max_steps=7"]) == 0
        folder.rename(tmp_path / "moved")
        with pytest.raises(UserError, match="elsewhere"):
            train.main(["--resume", str(out), "--max_steps=8"])
        assert train.main(["--resume", str(out), "--max_steps=8", f"--data={tmp_path / 'moved'}"]) == 0
    assert Run(out, "last").progress.step == 8
