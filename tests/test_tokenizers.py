"""Tokenizers that are not trained here: bytes, and any tokenizer.json of the tokenizers library."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
from test_data import ODD
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import sample
import train
from common.errors import UserError
from data.open import folder_of, load_tokenizer, prepared, tokenizer_of
from data.prepare.bpe import train_bpe
from data.text.prepare import corpus as text
from data.tokenizers import ByteTokenizer, FileTokenizer, read_tokenizer, text_of_each, tokenizer_name
from data.tokens import open_tokens
from tables.jobs import Job
from tests.fixtures import TINY, synthetic_text, train_in_process
from training.run import Run

TEXT = synthetic_text(60, 3) + "Two Words\n\n\n  It's the <|end|> \u00e9 .\n"
BEGIN, END = "<|begin|>", "<|end|>"


def byte_level(text: str = TEXT) -> tokenizers.Tokenizer:
    """As large language models have them: several line ends in a token, a special token before each text."""
    model = tokenizers.Tokenizer(models.BPE())
    words = pre_tokenizers.Split(tokenizers.Regex(r"\p{L}+|\s*[\r\n]+|."), "isolated")
    rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.pre_tokenizer = pre_tokenizers.Sequence([words, rest])
    model.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=290, show_progress=False, initial_alphabet=alphabet)
    model.train_from_iterator([text], trainer)
    model.add_special_tokens([BEGIN, END])
    begin = (BEGIN, model.token_to_id(BEGIN))
    model.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[begin])
    return model


def sentence_piece() -> tokenizers.Tokenizer:
    """A space before every text that is encoded."""
    special = ["<unk>", *(f"<0x{i:02X}>" for i in range(256))]
    model = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    model.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    space, start = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    model.decoder = decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse(), start])
    trainer = trainers.BpeTrainer(vocab_size=350, show_progress=False, special_tokens=special)
    model.train_from_iterator(TEXT.splitlines(), trainer)
    return model


def written(path: Path, model: tokenizers.Tokenizer, **changes: Any) -> Path:
    content = json.loads(model.to_str())
    content["model"] |= changes
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "their.json", byte_level())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "books"
    for split, lines in (("train", 300), ("validation", 40), ("test", 40)):
        (folder / split).mkdir(parents=True)
        (folder / split / "a.txt").write_text(synthetic_text(lines, lines) + TEXT)
    return folder


def test_bytes(tmp_path):
    tokenizer = ByteTokenizer()
    tokenizer.save(tmp_path)
    for other in (tokenizer, read_tokenizer(tmp_path / "tokenizer.json")):
        assert isinstance(other, ByteTokenizer) and (other.name, other.vocab_size) == ("bytes", 256)
        assert other.fingerprint == tokenizer.fingerprint
    theirs = tokenizer.model
    for any_text in [*ODD, TEXT]:
        ids = list(any_text.encode())
        assert tokenizer.encode(any_text) == theirs.encode(any_text).ids == ids
        assert tokenizer.decode(ids) == tokenizer.decode(np.array(ids, np.uint16)) == any_text
        assert theirs.decode(ids) == any_text
    assert tokenizer.encode_each(ODD).tolist() == list("".join(ODD).encode())
    cut = "\u20acx".encode()[1:]
    assert tokenizer.decode(cut) == theirs.decode(list(cut)) == "\ufffd\ufffdx"


def test_a_file_is_read_as_running_text(file, tmp_path):
    """Nothing is cut off, put before a text or read as special, whatever the file says."""
    theirs = byte_level()
    plain = theirs.encode(TEXT.replace(END, "-"), add_special_tokens=False).ids
    theirs.enable_truncation(8)
    theirs.enable_padding(length=20)
    tokenizer = read_tokenizer(written(tmp_path / "cut.json", theirs, dropout=0.5))
    assert isinstance(tokenizer, FileTokenizer) and tokenizer.fingerprint == read_tokenizer(file).fingerprint
    assert tokenizer.encode(TEXT.replace(END, "-")) == plain
    for any_text in [*ODD, TEXT, BEGIN]:
        ids = tokenizer.encode(any_text)
        assert tokenizer.decode(ids) == any_text
        assert not {tokenizer.vocab_size - 1, tokenizer.vocab_size - 2} & set(ids)


def test_a_file_is_named_by_its_content(file, tmp_path):
    name = tokenizer_name(str(file))
    assert name.startswith(f"bpe{read_tokenizer(file).vocab_size}-")
    read_tokenizer(file).save(tmp_path)  # as tokenizer.json
    assert tokenizer_name(str(tmp_path / "tokenizer.json")) == name
    assert folder_of("text", str(file), "books").name == f"{name}-books"
    assert tokenizer_name(name) == name and tokenizer_name("gpt2") == "gpt2"
    other = byte_level()
    other.normalizer = normalizers.NFC()
    assert tokenizer_name(str(written(tmp_path / "other.json", other))) != name


@pytest.mark.parametrize("more", ["post_processor", "truncation", "padding", "dropout"])
def test_a_file_with_our_rules_is_the_same_after_it_was_saved(more, source, tmp_path):
    theirs = train_bpe([TEXT], 270).model
    if more == "post_processor":
        theirs.post_processor = processors.ByteLevel(trim_offsets=True)
    if more == "truncation":
        theirs.enable_truncation(8)
    if more == "padding":
        theirs.enable_padding(length=8)
    path = written(tmp_path / "theirs.json", theirs, **({"dropout": 0.5} if more == "dropout" else {}))
    tokenizer = read_tokenizer(path)
    tokenizer.save(tmp_path)
    saved = read_tokenizer(tmp_path / "tokenizer.json")
    assert (saved.name, saved.fingerprint) == (tokenizer.name, tokenizer.fingerprint)
    assert tokenizer.encode(TEXT) == saved.encode(TEXT) == train_bpe([TEXT], 270).encode(TEXT)
    folder = text.prepare(tmp_path / "out", str(path), str(source))
    assert text.is_prepared(folder, str(path)) and text.prepare(folder, str(path), str(source)) == folder
    with pytest.raises(UserError, match="trained"):  # a tokenizer of that name that is trained here
        text.prepare(folder, "bpe270", str(source))


def test_a_byte_level_file_without_all_bytes_is_not_ours(tmp_path):
    """It drops the others, where ours bring every text back."""
    ours = json.loads(train_bpe([TEXT], 270).model.to_str())
    kept = [token for token in ours["model"]["vocab"] if token != "b"]
    ours["model"] |= {"vocab": {token: i for i, token in enumerate(kept)}, "merges": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(ours))
    assert isinstance(read_tokenizer(tmp_path / "tokenizer.json"), FileTokenizer)


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
def test_the_text_is_encoded_as_a_whole(make, source, tmp_path):
    """As the tokenizer itself does it: with its tokens of several line ends, and one space at the start."""
    out = text.prepare(tmp_path / "out", str(written(tmp_path / "their.json", make())), str(source))
    tokenizer, split = load_tokenizer(out), open_tokens(out / "test.bin")
    content = (source / "test/a.txt").read_text()
    assert split.ids.tolist() == tokenizer.encode(content)
    assert tokenizer.decode(split.ids) == content
    assert split.info["changed_lines"] == 0
    assert split.words == len(content.split()) + content.count("\n") and split.bytes == len(content.encode())


@pytest.mark.parametrize("old, new, counted", [("a", "b", False), ("Two", "One", True), ("\n", " ", False)])
def test_a_text_that_does_not_come_back(old, new, counted, source, tmp_path):
    """Of a few changed lines words and bytes are still counted."""
    with open(source / "test/a.txt", "a") as file:
        file.write("plain\n" * 200)
    model = byte_level()
    model.normalizer = normalizers.Replace(old, new)
    out = text.prepare(tmp_path / "out", str(written(tmp_path / "lossy.json", model)), str(source))
    split, lines = open_tokens(out / "test.bin"), (source / "test/a.txt").read_text().splitlines(True)
    assert split.info["changed_lines"] == sum(old in line for line in lines)
    assert [split.words is not None, split.bytes is not None] == [counted] * 2


def test_files_that_are_no_tokenizer(tmp_path, source):
    written(tmp_path / "gaps.json", tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a")))
    large = json.loads((tmp_path / "gaps.json").read_text())
    large["model"]["vocab"]["b"] = 2 * 10**9  # the library takes minutes to write it again
    (tmp_path / "large.json").write_text(json.dumps(large))
    for name in ("gaps.json", "large.json"):
        with pytest.raises(UserError, match=name):
            text.prepare(tmp_path / "out", str(tmp_path / name), str(source))
    assert not (tmp_path / "out").exists()
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="<unk>"))
    with pytest.raises(UserError, match="wordlevel1-"):  # the text has no ids
        text.prepare(tmp_path / "out", str(written(tmp_path / "words.json", words)), str(source))


def test_another_file_is_refused(file, source, tmp_path):
    out = text.prepare(tmp_path / "out", str(file), str(source))
    assert text.is_prepared(out, str(file))
    other = written(tmp_path / "other.json", byte_level(TEXT[::-1]))
    for tokenizer in (str(other), "bytes", "bpe270"):
        with pytest.raises(UserError, match="tokenizer"):
            text.prepare(out, tokenizer, str(source))


def test_trains_and_samples(file, source, tmp_path, monkeypatch, capsys):
    """A run has the tokenizer with it, under its name: no path of one machine."""
    monkeypatch.chdir(tmp_path)
    asked = str(file)
    folder = prepared("text", asked, str(source), tmp_path)
    settings = TINY | dict(dataset="text", source=str(source), tokenizer=asked, max_steps=2, lr_decay_steps=2)
    config = train.TrainConfig(**settings | dict(name="run", out_dir="run"))
    assert train_in_process(config, folder) == 0
    file.unlink()  # nothing needs it any more
    with monkeypatch.context() as patch:
        patch.setattr("training.text.prepared", lambda *_: folder)
        assert train.main(["--resume", "run", "--max_steps=3"]) == 0
    ckpt, tokenizer = Run("run"), load_tokenizer(folder)
    assert ckpt.config.tokenizer == tokenizer.name and ckpt.progress.step == 3
    assert tokenizer_of(ckpt).fingerprint == tokenizer.fingerprint
    settings |= dict(tokenizer="run/last/tokenizer.json", max_steps=3)
    flags = [f"--{key}={value}" for key, value in settings.items()]
    run = Job(Path("run"), (*flags, "--name=run", "--out_dir=run"))
    assert not run.differs(ckpt.record)
    capsys.readouterr()
    assert sample.main(["run", "--prompt=Two\n\nWords", "--length=5", "--device=cpu"]) == 0
    assert capsys.readouterr().out.startswith("Two\n\nWords")


def test_a_character_of_several_tokens_is_added_by_its_last():
    """Once, also where it is unread until the next is whole, as by tokenizers with ByteFallback."""
    plain = SimpleNamespace(decode=lambda ids: bytes(ids).decode(errors="replace"))
    assert text_of_each([*"é!".encode()], plain) == ["", "é", "!"]
    assert text_of_each([97, 0xC3, 98], plain) == ["a", "", "\ufffdb"]
    assert text_of_each([97, 0xC3], plain) == ["a", "\ufffd"]
    decode = lambda ids: decoders.ByteFallback().decode([f"<0x{i:02X}>" for i in ids])
    fallback = SimpleNamespace(decode=decode)
    assert text_of_each([*"é€".encode()], fallback) == ["", "é", "", "", "€"]
