"""Corpora: what one is, how it is prepared, and how a training opens it.

A folder with a prepare.py is a corpus: it says what its splits are made of. All else is here. The prepared
folder data/CORPUS/TOKENIZER holds train.bin, validation.bin and test.bin, each with its JSON beside it, and
meta.json, which is written last and says what the folder is. Any tokenizer but gpt2 is there, too, as
tokenizer.json. Whoever prepares it again keeps what is whole; other settings are refused, or start over.
"""

import contextlib
import gzip
import hashlib
import importlib
import os
import shutil
import sys
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, NamedTuple

import numpy as np

from common.errors import UserError, reading
from common.files import locked, read_json, real_path, remove_leftovers, write_json
from common.log import progress_bar
from common.places import CODE, WORK
from data.tokenizers import (
    ByteTokenizer,
    GPT2Tokenizer,
    Tokenizer,
    WordTokenizer,
    given_tokenizer,
    read_tokenizer,
    tokenizer_name,
    train_bpe,
)
from data.tokens import PREPARE, TokenFile, open_tokens, write_tokens

DATA = WORK / "data"
ROOT = WORK  # what `kept_path` is relative to
SPLITS = ("train", "validation", "test")
SplitName = Literal["train", "validation", "test"]
META = {"tokenizer": str, "source": str, "splits": dict[SplitName, bool | None]}  # what is read of meta.json
BATCH = 2**18  # characters of text that are read, and tokenised, at a time
# Share of a text's lines that may not come back from its tokens. With more, a model scores another text than
# the original, whose words and bytes then do not say how long the scored one is.
CHANGED = 0.01


# -----------------------------------------------------------------------------
# What a corpus is


@dataclass
class PrepareConfig:
    # fmt: off
    out: str = ""                   # the prepared folder; empty: data/CORPUS/TOKENIZER
    force: bool = False             # start over, whatever the folder holds
    # fmt: on


class Split(NamedTuple):
    lines: Callable[[], Iterable[str]]  # starts a fresh pass over the text, line by line, each with its "\n"
    bytes: int | None = None  # UTF-8 size of the text, where it is known before reading
    sha256: str | None = None  # of the text, likewise
    # A text may be sequences of `length` tokens (0: it is not), each of which begins with `given` tokens that
    # are given and never predicted
    length: int = 0
    given: int = 0
    # and, for classifier-free guidance: in which share of training sequences the token `absent` takes their
    # place. Training draws anew at each visit which ones (data.batches.TextSource)
    dropped: float = 0.0
    absent: int = -1


class Contents(NamedTuple):
    """What a prepared folder is made of."""

    source: str  # where the text comes from, for the record: a folder of another source is refused
    splits: Mapping[str, Split]
    words: Sequence[str] = ()  # the vocabulary, of a corpus that has words of its own
    # of each split, what the info of the whole official one says ("words", "sha256", ...)
    official: Mapping[str, Mapping[str, Any]] = {}
    # writes what else belongs to the folder, all or nothing: called when the splits are whole, before the
    # folder says that it is
    finish: Callable[[], None] = lambda: None


class Corpus(ABC):
    """What a prepare.py says of its corpus: `corpus` in it is an instance of a subclass.

    file    the prepare.py; its folder names the corpus
    config  what its command takes: a PrepareConfig with the fields `tokenizer` and `source`, and maybe others
    """

    own_words: ClassVar[bool] = False  # whether it brings its vocabulary, and takes no other tokenizer
    measure: ClassVar[str] = ""  # `--measure` of its models, where they write no text
    sampler: ClassVar[str] = ""  # the program that draws from its models, where sample.py does not

    def __init__(self, file: str, config: type[PrepareConfig]):
        self.name, self.config = Path(file).resolve().parent.name, config

    @abstractmethod
    def contents(self, c: Any) -> Contents:
        """What the folder `c.out` is to be made of. UserError for a source that cannot be had."""

    def lasting_source(self, c: Any) -> str | None:
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
        if self.own_words != (tokenizer == WordTokenizer.name):
            raise UserError(f"tokenizer = {tokenizer!r}: a corpus of words takes words, others do not")
        given, out = given_tokenizer(tokenizer), Path(out)
        options |= {"source": source} if source else {}
        c = self.config(out=str(out), force=force, **{"tokenizer": tokenizer, **options})
        lasting = self.lasting_source(c)
        if lasting is not None and not force:
            if is_prepared(out, tokenizer, lasting, compare=True):
                return out
            if lasting:
                wanted = {"source": lasting, "tokenizer": given.name if given else tokenizer}
                refuse_another(out, held_by(out, whole_splits(out)), wanted)
        return prepare_splits(out, tokenizer, self.contents(c), force)

    def command(self, c: Any) -> int:
        """What the command of its prepare.py does; its exit code."""
        options = dict(vars(c))
        folder = self.folder_name(tokenizer_name(c.tokenizer), c.source)
        out = Path(options.pop("out") or DATA / self.name / folder)
        print(summary(self.prepare(out, **options)))
        print(f"prepared {out}", file=sys.stderr)
        return 0


# -----------------------------------------------------------------------------
# Text


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """A UTF-8 file, or a .gz of one, byte for byte but for a mark at its start (BOM): only "\\n" ends a line,
    "\\r" is a character in it.

    UserError naming it when what is read turns out to be damaged.
    """
    open_file = gzip.open if path.suffix == ".gz" else open
    with reading(path), open_file(path, "rt", encoding="utf-8-sig", newline="\n") as file:
        yield file


def size_read(path: Path) -> int:
    """The bytes that `open_text` gives of a file that is no .gz."""
    with path.open("rb") as file:
        marked = file.read(len(BOM_UTF8)) == BOM_UTF8
    return path.stat().st_size - marked * len(BOM_UTF8)


def file_lines(path: Path) -> Iterator[str]:
    """The lines of the file at `path`, see `open_text`. One of more than BATCH characters comes in pieces."""
    with open_text(path) as file:
        yield from bounded_lines(file)


def bounded_lines(file: IO[str]) -> Iterator[str]:
    """The lines of `file`; one of more than BATCH characters in pieces of at most three times as many.

    A piece ends before a space if it has one: tokenizers join a space to the word behind it.
    """
    rest = ""
    while line := rest + file.readline(BATCH):
        rest = ""
        if len(line) >= BATCH and not line.endswith("\n"):
            end = len(line[: line.rfind(" ") + 1].rstrip(" "))
            if end > 0:
                line, rest = line[:end], line[end:]
        yield line


def read_batches(split: Split, label: str) -> Iterator[list[str]]:
    """The lines of `split` in lists of about BATCH characters, with a progress bar in bytes on stderr."""
    with progress_bar(total=split.bytes, desc=label, unit="B", unit_scale=True) as bar:
        batch, size = [], 0
        for line in split.lines():
            batch.append(line)
            size += len(line)
            if size >= BATCH:
                yield batch
                bar.update(sum(len(line.encode()) for line in batch))
                batch, size = [], 0
        if batch:
            yield batch
            bar.update(sum(len(line.encode()) for line in batch))


# -----------------------------------------------------------------------------
# Prepare


def prepare_splits(out: str | Path, tokenizer: str, contents: Contents, force: bool = False) -> Path:
    """Tokenise `contents` into the folder `out`, which becomes a prepared folder. What is whole is kept.

    A folder that was prepared from another source, text or tokenizer is refused (UserError) unless `force`,
    which starts over.
    """
    out, splits = Path(out), contents.splits
    coder = WordTokenizer.of([*contents.words]) if contents.words else given_tokenizer(tokenizer)
    meta: dict[str, Any] = {"tokenizer": coder.name if coder else tokenizer, "source": contents.source}
    wanted: dict[str, Any] = {**meta, "fingerprint": coder.fingerprint if coder else None}
    wanted |= {f"{name}.bytes": split.bytes for name, split in splits.items()}
    wanted |= {f"{name}.sha256": split.sha256 for name, split in splits.items()}
    with locked(out / ".lock"):  # the others (ranks of one run) wait, then find it whole
        remove_leftovers(out)
        if force:
            start_over(out)
        whole = whole_splits(out)
        refuse_another(out, held_by(out, whole), wanted)
        if not meta.items() <= read_meta(out).items():
            write_json(out / "meta.json", meta)  # says whose the folder is, before anything else is in it

        # The tokenizer
        saved = read_tokenizer(out / "tokenizer.json") if (out / "tokenizer.json").is_file() else None
        if coder is None and saved and saved.name == tokenizer:
            coder = saved
        elif coder is None:
            if "train" not in splits:
                raise UserError(f"{tokenizer} is trained on the train split, which {contents.source} lacks")
            lines = chain.from_iterable(read_batches(splits["train"], tokenizer))
            coder = train_bpe(lines, int(tokenizer.removeprefix("bpe")))
        if saved is None or saved.fingerprint != coder.fingerprint:  # of a preparation that went no further
            coder.save(out)

        # The splits
        for name, split in splits.items():
            official = contents.official.get(name, {})
            if whole.get(name, {}).get("fingerprint") != coder.fingerprint:
                whole[name] = tokenise(out / f"{name}.bin", split, coder, contents.source, official).info
            report_split(name, whole[name], official)
        contents.finish()

        # The record
        complete = {name: whole[name]["complete"] for name in splits}
        meta |= {"fingerprint": coder.fingerprint, "vocab_size": coder.vocab_size, "splits": complete}
        write_json(out / "meta.json", meta | {"missing": [name for name in SPLITS if name not in splits]})
    return out


def tokenise(
    path: Path, split: Split, tokenizer: Tokenizer, source: str, official: Mapping[str, Any]
) -> TokenFile:
    """Tokenise `split` into the token file `path`, counting and hashing the text on the way.

    Its info has no "words" and "bytes" where the tokens do not hold the text: see CHANGED.

    official  what the info of the whole official split says ("words", "sha256", ...); "complete" is whether
              all of it agrees, None when there is nothing to compare with
    """
    counts = {"words": 0, "lines": 0, "bytes": 0, "changed_lines": 0}
    sha256 = hashlib.sha256()

    def encode(text: str, lines: list[str]) -> tuple[np.ndarray, int]:
        """(ids, how many of the lines do not come back from them)."""
        if tokenizer.by_line:
            return tokenizer.encode_each(lines), 0
        ids = tokenizer.encode_each([text])
        before, after = text.split("\n"), tokenizer.decode(ids).split("\n")
        if len(before) != len(after):  # line ends are among what is lost
            return ids, len(lines)
        return ids, sum(a != b for a, b in zip(before, after))

    def arrays() -> Iterator[np.ndarray]:
        cores = os.cpu_count() or 1
        pending: deque[Future[tuple[np.ndarray, int]]] = deque()

        def next_ids() -> np.ndarray:
            ids, changed = pending.popleft().result()
            counts["changed_lines"] += changed
            return ids

        with ThreadPoolExecutor(cores) as pool:
            for lines in read_batches(split, path.stem):
                text = "".join(lines)
                pending.append(pool.submit(encode, text, lines))
                raw = text.encode()
                sha256.update(raw)
                counts["words"] += len(text.split())
                counts["lines"] += raw.count(b"\n")
                counts["bytes"] += len(raw)
                if len(pending) > 2 * cores:  # memory stays bounded, and no core waits for this loop
                    yield next_ids()
            while pending:
                yield next_ids()

    def info() -> dict[str, Any]:
        seen: dict[str, Any] = {**counts, "sha256": sha256.hexdigest()}
        complete = all(seen[key] == value for key, value in official.items()) if official else None
        if counts["changed_lines"] > CHANGED * counts["lines"]:
            del seen["words"], seen["bytes"]
        return {
            "tokenizer": tokenizer.name,
            "fingerprint": tokenizer.fingerprint,
            **seen,
            **({"length": split.length, "given": split.given} if split.length else {}),
            **({"dropped": split.dropped, "absent": split.absent} if split.dropped else {}),
            "source": source,
            "complete": complete,
        }

    return write_tokens(path, arrays(), tokenizer.vocab_size, info)


def report_split(name: str, info: Mapping[str, Any], official: Mapping[str, Any]) -> None:
    """Says of a split, on stderr, what it lacks: a part of the official text, or lines that come back from
    their tokens."""
    if info["complete"] is False:
        other = [f"{key} {info[key]} of {value}" for key, value in official.items() if info.get(key) != value]
        print(f"{name} is partial: {', '.join(other)}", file=sys.stderr)
    if changed := info.get("changed_lines", 0):
        few = "bytes" in info
        then = "few enough for" if few else "so there is no"
        print(
            f"{name}: {changed:,} of {info['lines']:,} lines do not come back from their tokens, {then} "
            "perplexity a word and bits a byte",
            file=sys.stderr,
        )


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


# -----------------------------------------------------------------------------
# Refuse, or start over


def whole_splits(out: Path) -> dict[str, dict[str, Any]]:
    """The info of each split in `out` whose token file is whole."""
    infos = {}
    for name in SPLITS:
        with contextlib.suppress(ValueError, FileNotFoundError):
            infos[name] = open_tokens(out / f"{name}.bin", compare=True).info
    return infos


def held_by(out: Path, whole: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What `out` was prepared with, of its whole splits and its tokenizer. {} of a folder that has no split
    and no tokenizer but `bytes`, which is the same for every text, whatever its meta.json says."""
    saved = out / "tokenizer.json"
    tokenizer = read_tokenizer(saved) if saved.is_file() else None
    held: dict[str, Any] = {}
    if tokenizer and (whole or not isinstance(tokenizer, ByteTokenizer)):
        held = read_meta(out) | {"tokenizer": tokenizer.name, "fingerprint": tokenizer.fingerprint}
    for name, info in whole.items():
        held |= {key: info[key] for key in ("tokenizer", "source") if key in info}
        held |= {f"{name}.{key}": info[key] for key in ("bytes", "sha256") if key in info}
    return held


def refuse_another(out: Path, held: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """UserError if `out` holds what was prepared with other settings than are `wanted` (None: any)."""
    for key, value in wanted.items():
        if value is not None and held.get(key, value) != value:
            raise UserError(
                f"{out} was prepared with {key} {held[key]!r}, not {value!r}: --force starts over, "
                "--out=FOLDER makes another"
            )


def start_over(out: Path) -> None:
    """Removes all that a prepared folder holds."""
    files = [out / f"{split}{end}" for split in SPLITS for end in (".json", ".bin", ".truth.npz")]
    for path in (out / "meta.json", out / "tokenizer.json", *files):
        path.unlink(missing_ok=True)
    for labels in out.glob("labels-*"):
        shutil.rmtree(labels)


# -----------------------------------------------------------------------------
# Open


def corpora() -> dict[str, Path]:
    """The program of each corpus by the name of its folder: data/NAME/prepare.py, labs/NAME/prepare.py or
    labs/LAB/NAME/prepare.py."""
    programs = [path for home in ("data/*", "labs/*", "labs/*/*") for path in CODE.glob(f"{home}/prepare.py")]
    return {path.parent.name: path for path in sorted(programs, key=lambda path: path.parent.name)}


def corpus_of(dataset: str) -> Corpus:
    """The corpus in a prepare.py. UserError if there is none of that name."""
    known = corpora()
    if dataset not in known:
        raise UserError(f"unknown dataset {dataset!r} (known: {', '.join(known)})")
    module = importlib.import_module(".".join(known[dataset].relative_to(CODE).with_suffix("").parts))
    return module.corpus


def measure_of(dataset: str) -> str:
    """The measure of a corpus' models; "" for text, and for a corpus that is not here."""
    return corpus_of(dataset).measure if dataset in corpora() else ""


def sampler_of(dataset: str) -> str:
    """The program that draws from a corpus' models; "" for sample.py, and for a corpus that is not here."""
    return corpus_of(dataset).sampler if dataset in corpora() else ""


def folder_of(dataset: str, tokenizer: str, source: str = "", root: str | Path = DATA) -> Path:
    """Where a corpus is prepared: data/wikitext103/gpt2, and with settings that are not the standard ones,
    data/grammar/words-train=50000. UserError for an unknown dataset or setting."""
    name = corpus_of(dataset).folder_name(tokenizer_name(tokenizer), source)
    return Path(root) / dataset / name


def prepared(dataset: str, tokenizer: str, source: str = "", root: str | Path = DATA) -> Path:
    """The folder of a corpus (see `folder_of`), prepared first unless it is whole.

    dataset    a folder of data/ or labs/ with a prepare.py: "wikitext103", "text", "grammar", ...
    tokenizer  see Corpus.prepare
    source     where the text comes from; "" takes what is prepared already, else the corpus' default

    UserError for unknown names, for a folder that was prepared from another source, and for a damaged token
    file.
    """
    folder = folder_of(dataset, tokenizer, source, root)
    for split in read_meta(folder).get("splits", ()):
        with contextlib.suppress(FileNotFoundError):  # it is made again; a damaged one, the user sees
            open_tokens(folder / f"{split}.bin")
    if not is_prepared(folder, tokenizer, source):
        corpus_of(dataset).prepare(folder, tokenizer, source)
    return folder


def is_prepared(folder: Path, tokenizer: str, source: str = "", compare: bool = False) -> bool:
    """Whether `folder` is finished, of that tokenizer and (unless "") of that source, and all splits open.

    compare  whether their ids are compared with their SHA-256
    """
    meta = read_meta(folder)
    if not meta.get("splits") or meta.get("tokenizer") != tokenizer_name(tokenizer):
        return False
    if source and meta.get("source") not in (source, str(real_path(source))):
        return False
    try:
        fingerprint = load_tokenizer(folder).fingerprint
        files = [open_tokens(folder / f"{split}.bin", compare) for split in meta["splits"]]
        return all(file.info.get("fingerprint") == fingerprint for file in files)
    except (OSError, ValueError):
        return False


def read_meta(folder: Path) -> dict[str, Any]:
    """What meta.json in `folder` says; {} when it is missing or damaged, which means: prepare again."""
    try:
        return read_json(folder / "meta.json", others=META)
    except (OSError, ValueError):
        return {}


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a prepared folder. FileNotFoundError if the folder names none, UserError if its file
    is damaged."""
    folder = Path(folder)
    if (folder / "tokenizer.json").is_file():
        return read_tokenizer(folder / "tokenizer.json")
    if read_meta(folder).get("tokenizer") == "gpt2":
        return GPT2Tokenizer()
    raise FileNotFoundError(f"{folder} has no tokenizer.json, and no meta.json that says gpt2: {PREPARE}")


# -----------------------------------------------------------------------------
# What a run keeps of its corpus


def kept_path(folder: Path) -> str:
    """`folder` as a checkpoint keeps it: relative to the project if it lies inside, so that both can move.

    Else the absolute path.
    """
    folder = Path(folder).absolute()
    return str(folder.relative_to(ROOT)) if folder.is_relative_to(ROOT) else str(folder)


def found_path(kept: str, run: str | Path) -> Path:
    """The folder that `kept_path` wrote down in `run`. FileNotFoundError if it is not there any more."""
    folder = ROOT / kept
    if not folder.is_dir():
        raise FileNotFoundError(f"the token files of {run} are not in {folder}: give --data=FOLDER")
    return folder


def tokenizer_of(ckpt: Any) -> Tokenizer:
    """The tokenizer that a checkpoint was trained with: GPT-2's, or the one saved in its folder.

    UserError if another one lies there.
    """
    path, name = ckpt.path / "tokenizer.json", ckpt.config.tokenizer
    tokenizer: Tokenizer = GPT2Tokenizer() if name == "gpt2" else read_tokenizer(path)
    if tokenizer.fingerprint != ckpt.config.tokenizer_fingerprint:
        raise UserError(f"{path} is not the tokenizer ({name}) that this model was trained with")
    return tokenizer
