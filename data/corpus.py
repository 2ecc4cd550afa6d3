"""Corpora: a folder with a prepare.py says what its splits are made of, here is what all of them share.

From the flags of a prepare.py to the prepared folder (data/prepared.py): the tokenizer, the token files, the
record, what is kept and what is refused.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from common.errors import UserError
from common.files import locked, remove_leftovers, write_json
from data.prepared import DATA, SPLITS, is_prepared, load_tokenizer, read_meta
from data.settings import PrepareConfig
from data.splits import Split, read_batches, tokenise_split
from data.tokenizers import (
    GPT2Tokenizer,
    Tokenizer,
    WordTokenizer,
    bpe_size,
    given_tokenizer,
    tokenizer_name,
    train_bpe,
)
from data.tokens import open_tokens

Config = TypeVar("Config", bound=PrepareConfig)


class Contents(NamedTuple):
    """What a prepared folder is made of."""

    source: str  # where the text comes from, for the record: a folder of another source is refused
    splits: Mapping[str, Split]
    words: Sequence[str] = ()  # the vocabulary, of a corpus that has words of its own
    # of each split, what the info of the whole official one says ("words", "sha256", ...)
    official: Mapping[str, Mapping[str, Any]] | None = None
    # writes what else belongs to the folder, all or nothing: called when the splits are whole, before the
    # folder says that it is
    finish: Callable[[], None] | None = None


class Corpus(ABC, Generic[Config]):
    """What a prepare.py says of its corpus: `corpus` in it is an instance of a subclass.

    file    the prepare.py; its folder names the corpus
    config  what its command takes
    """

    own_words: ClassVar[bool] = (
        False  # whether the corpus brings its vocabulary, and takes no other tokenizer
    )
    measure: ClassVar[str] = ""  # `--measure` of its models, where they write no text
    sampler: ClassVar[str] = ""  # the program that draws from its models, where sample.py does not

    def __init__(self, file: str, config: type[Config]):
        self.name, self.config = Path(file).resolve().parent.name, config

    @abstractmethod
    def contents(self, c: Config) -> Contents:
        """What the folder `c.out` is to be made of. UserError for a source that cannot be had."""

    def lasting_source(self, c: Config) -> str | None:
        """The record's source where that cannot have changed. Then nothing is read where the folder is whole,
        or was prepared from another source. "" is any source. None: the source is read, and compared with
        what the folder holds."""
        return None

    def folder_name(self, tokenizer: str, source: str) -> str:
        """Name of the prepared folder in data/CORPUS. UserError for a wrong `source`."""
        return tokenizer

    def unusual_settings(self, source: str) -> str:
        """Which settings in the record's `source` are not the standard ones; "" if none."""
        return ""

    def given(self, source: str) -> int:
        """How many tokens at the start of each sequence are given, and never predicted."""
        return 0

    def truth(self, source: str, length: int) -> Any:
        """The exact distributions of sequences of `length` tokens (labs/sequences/two_sided.py); None where
        nobody knows them."""
        return None

    def prepare(
        self, out: str | Path, tokenizer: str, source: str = "", force: bool = False, **options: Any
    ) -> Path:
        """The corpus, tokenised into the folder `out`. What is whole is kept; see `prepare_splits`.

        tokenizer  "gpt2", "bytes", the path of a tokenizer.json, or "bpe<vocabulary size>": trained on the
                   train split; or "words" of a corpus that has words of its own
        source     where its text comes from, or its settings; "" for the standard ones
        options    the other fields of its configuration
        """
        self._check(tokenizer, source)
        if source:
            options["source"] = source
        c = self.config(out=str(out), tokenizer=tokenizer, force=force, **options)  # type: ignore[call-arg]
        lasting = self.lasting_source(c)
        if lasting is not None and not force:
            there = Path(out)
            if is_prepared(there, tokenizer, lasting):
                if _whole_infos(there).keys() == set(read_meta(there)["splits"]):
                    return there
            if lasting:
                trains = bpe_size(tokenizer) is not None
                _refuse_other_record(Path(out), tokenizer_name(tokenizer), lasting, trains)
        return prepare_splits(out, tokenizer, self.contents(c), force)

    def _check(self, tokenizer: str, source: str) -> None:
        """UserError for a tokenizer or a source that the corpus does not take."""
        words = WordTokenizer.name
        if self.own_words != (tokenizer == words):
            usable = repr(words) if self.own_words else "gpt2, bytes, bpe<size> or a tokenizer.json"
            raise UserError(f"tokenizer = {tokenizer!r}: for {self.name} use {usable}")
        if source and "source" not in {field.name for field in fields(self.config)}:
            raise UserError(f"the corpus {self.name} takes no source, not {source!r}: leave it empty")

    def command(self, c: Config) -> int:
        """What the command of its prepare.py does; its exit code: 0, or 130 for Ctrl-C."""
        options = dict(vars(c))
        bpe_size(options["tokenizer"])  # before any download
        folder = self.folder_name(tokenizer_name(options["tokenizer"]), options.get("source", ""))
        out = Path(options.pop("out") or DATA / self.name / folder)
        try:
            print(summary(self.prepare(out, **options)))
            print(f"prepared {out}", file=sys.stderr)
        except KeyboardInterrupt:
            print("stopped; run it again to go on: whole splits are kept", file=sys.stderr)
            return 130
        return 0


def prepare_splits(out: str | Path, tokenizer: str, contents: Contents, force: bool = False) -> Path:
    """Tokenise `contents` into the folder `out`, which becomes a prepared folder. What is whole is kept.

    A folder that was prepared from another source or with another tokenizer is refused (UserError) unless
    `force`, which starts over.
    """
    trains = bpe_size(tokenizer) is not None
    out, splits, source = Path(out), contents.splits, contents.source
    ready = WordTokenizer.of(list(contents.words)) if contents.words else given_tokenizer(tokenizer)
    tokenizer = ready.name if ready else tokenizer
    with locked(out / ".lock"):  # the others (ranks of one run) wait, then find it whole
        remove_leftovers(out)
        if force:
            _start_over(out)
        _refuse_other_record(out, tokenizer, source, trains)
        _refuse_other_text(out, source, splits)
        meta = {"tokenizer": tokenizer, "source": source}
        # says whose the folder is, before anything else is in it
        if not meta.items() <= read_meta(out).items():
            write_json(out / "meta.json", meta)
        coder = _get_tokenizer(out, tokenizer, source, splits, ready)
        complete = {}
        for name, split in splits.items():
            path, official = out / f"{name}.bin", (contents.official or {}).get(name, {})
            info = _whole_info(path, coder.fingerprint)
            if info is None:
                info = tokenise_split(path, split, coder, source, official).info
            complete[name] = info["complete"]
            if complete[name] is False:
                print(f"{name} is partial: {_compare(info, official)}", file=sys.stderr)
            _report_changed_lines(name, info)
        if contents.finish:
            contents.finish()
        write_json(
            out / "meta.json",
            {
                **meta,
                "fingerprint": coder.fingerprint,
                "vocab_size": coder.vocab_size,
                "splits": complete,
                "missing": [name for name in SPLITS if name not in splits],
            },
        )
    return out


def _start_over(out: Path) -> None:
    """Removes all that a prepared folder holds."""
    files = [f"{split}{end}" for split in SPLITS for end in (".json", ".bin", ".truth.npz")]
    labels = [path.name for split in SPLITS for path in out.glob(f"{split}.labels-*")]
    for name in ("meta.json", "tokenizer.json", *files, *labels):
        (out / name).unlink(missing_ok=True)


def _whole_info(path: Path, fingerprint: str | None = None) -> dict[str, Any] | None:
    """The info of the token file at `path` if it is whole (and has that fingerprint), else None."""
    try:
        info = open_tokens(path, compare=True).info
    except (ValueError, FileNotFoundError):
        return None
    return info if fingerprint in (None, info.get("fingerprint")) else None


def _compare(info: Mapping[str, Any], official: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{info[key]:,} {key} of {value:,}" if isinstance(value, int) else f"another {key}"
        for key, value in official.items()
        if key in info and info[key] != value
    )


def _report_changed_lines(name: str, info: Mapping[str, Any]) -> None:
    """A line on stderr where the text of a split does not come back from its tokens."""
    changed = info.get("changed_lines", 0)
    if not changed:
        return
    then = "perplexity a word and bits a byte would be those of another text, and are left out"
    if "bytes" in info:
        then = "few enough for perplexity a word and bits a byte"
    print(
        f"{name}: {changed:,} of {info['lines']:,} lines do not come back from their tokens "
        f"({info['tokenizer']} changes or drops characters): {then}",
        file=sys.stderr,
    )


def _whole_infos(out: Path) -> dict[str, dict[str, Any]]:
    """The info of each split in `out` that is whole."""
    return {name: info for name in SPLITS if (info := _whole_info(out / f"{name}.bin"))}


def _refuse_other_record(out: Path, tokenizer: str, source: str, trains: bool) -> None:
    """UserError if `out` was prepared from another source or tokenizer. `trains`: the tokenizer is made from
    the text."""
    infos = _whole_infos(out)
    # alone it claims nothing, nor beside a tokenizer that is the same for every text
    held_by_meta = read_meta(out) if infos or (trains and (out / "tokenizer.json").is_file()) else {}
    for held in (held_by_meta, *infos.values()):
        for key, wanted in (("source", source), ("tokenizer", tokenizer)):
            if key in held and held[key] != wanted:
                raise UserError(
                    f"{out} was prepared from {key} {held[key]!r}, not {wanted!r}: prepare.py --force starts "
                    f"over, --out=FOLDER makes another, a training without --{key} uses it as it is"
                )


def _refuse_other_text(out: Path, source: str, splits: Mapping[str, Split]) -> None:
    """UserError if the source has changed since `out` was prepared from it."""
    for name, info in _whole_infos(out).items():
        if name not in splits:
            continue
        _, size, sha256, *_ = splits[name]
        remedy = "use --force to start over, or another --out"
        if size not in (None, info.get("bytes", size)) or sha256 not in (None, info.get("sha256")):
            raise UserError(f"{out / name}.bin was made from another text than {source} now has: {remedy}")


def _get_tokenizer(
    out: Path, name: str, source: str, splits: Mapping[str, Split], ready: Tokenizer | None = None
) -> Tokenizer:
    """The tokenizer `name`: gpt2, or the one that `out` holds.

    Where it holds none: `ready`, or one trained on the train split, saved there.
    """
    if name == "gpt2":
        return GPT2Tokenizer()
    if (out / "tokenizer.json").is_file():
        saved = load_tokenizer(out)
        if saved.name != name or (ready and saved.fingerprint != ready.fingerprint):
            another = "another " if saved.name == name else ""
            raise UserError(
                f"{out / 'tokenizer.json'} is {another}{saved.name}, not {name}: "
                "use --force, or another --out"
            )
        return saved
    if ready is not None:
        ready.save(out)
        return ready
    if "train" not in splits:
        raise UserError(
            f"{name} is trained on the train split, which {source} lacks: add it, or use --tokenizer gpt2"
        )
    vocab_size = bpe_size(name)
    assert vocab_size is not None  # all others are ready
    trained = train_bpe(chain.from_iterable(read_batches(splits["train"], name)), vocab_size)
    trained.save(out)
    return trained


def summary(folder: Path) -> str:
    """One line per split of a prepared folder."""
    rows = []
    for split in read_meta(folder)["splits"]:
        info = open_tokens(folder / f"{split}.bin").info
        complete = {True: "complete", False: "partial", None: ""}[info["complete"]]  # None: no official text
        units = (unit for unit in ("tokens", "words", "bytes") if unit in info)
        sizes = " ".join(f"{info[unit]:>12,} {unit}" for unit in units)
        rows.append(f"{split:<10} {sizes}  {complete}".rstrip())
    return "\n".join(rows)
