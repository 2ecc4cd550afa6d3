"""What a corpus is, and how it becomes a prepared folder.

A folder with a prepare.py is a corpus: it says what its splits are made of. All else is here. Whoever
prepares it again keeps a folder of the same; one of another source or text is refused, or starts over. Files
are made in FOLDER/.new, and take their names when all are whole, manifest.json the last.
"""

import contextlib
import hashlib
import os
import shlex
import shutil
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from common.errors import UserError
from common.files import locked, real_path
from common.log import progress_bar
from common.manifest import NAME as MANIFEST
from common.manifest import read_manifest, sha256_of, write_manifest
from common.places import CODE
from data.open import DATA
from data.prepare.bpe import train_bpe
from data.prepare.lines import BATCH
from data.tokenizers import Tokenizer, WordTokenizer, given_tokenizer, tokenizer_name
from data.tokens import TokenFile, check_prepared, read_made, write_tokens

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
    # writes what else belongs beside the splits, which it is given; manifest.json will have all of it
    finish: Callable[[Mapping[str, TokenFile]], None] = lambda splits: None


class Corpus(ABC):
    """What a prepare.py says of its corpus: `corpus` in it is an instance of a subclass.

    file    the prepare.py; its folder names the corpus
    config  what its command takes: a PrepareConfig with the fields `tokenizer` and `source`, and maybe others
    """

    own_words: ClassVar[bool] = False  # whether it brings its vocabulary, and takes no other tokenizer
    measure: ClassVar[str] = ""  # `--measure` of its models, where they write no text
    sampler: ClassVar[str] = ""  # the program that draws from its models, where sample.py does not

    def __init__(self, file: str, config: type[PrepareConfig]):
        self.program, self.config = Path(file).resolve(), config
        self.name = self.program.parent.name

    @abstractmethod
    def contents(self, c: Any) -> Contents:
        """What the folder `c.out` is to be made of. UserError for a source that cannot be had."""

    def files(self, c: Any) -> list[Path]:
        """The files that the text comes from, in a fixed order: who edits one is told so. [] where no file
        decides it, or where they are no longer there."""
        return []

    def same_source(self, asked: str, recorded: str) -> bool:
        """Whether a user's source, not "", is the one that a folder was made of."""
        return recorded in (asked, str(real_path(asked)))

    def folder_name(self, tokenizer: str, source: str) -> str:
        """Name of the prepared folder in data/CORPUS. UserError for a wrong `source`."""
        return tokenizer

    def given(self, source: str) -> int:
        """How many tokens at the start of each sequence are given, and never predicted."""
        return 0

    def truth(self, source: str, length: int) -> Any:
        """The exact distributions of sequences of `length` tokens (labs/sequences/two_sided.py); None where
        nobody knows them."""
        return None

    def is_prepared(self, out: Path, tokenizer: str, source: str = "", **settings: Any) -> bool:
        """Whether `out` is prepared from what is asked for; False where nothing is there. It writes nothing,
        and of the source it reads the files' names, sizes and times; their bytes only where these differ.

        source    "": any
        settings  other fields of its configuration; one that is not among them may be any

        UserError for a folder made of something else, or of files that have changed since.
        """
        given = given_tokenizer(tokenizer)
        if not any(out.glob("[!.]*")):  # what was interrupted is hidden: .new and .lock
            return False
        made = read_made(out)
        held = made | made.get("settings", {})
        # a tokenizer of a file may have the name of one that is trained here: bpe4096
        asked = {"tokenizer": given.name if given else tokenizer, "trained": given is None, **settings}
        asked |= {"fingerprint": given.fingerprint} if given else {}
        asked |= {"source": source} if source and not self.same_source(source, made["source"]) else {}
        for key, value in asked.items():
            if held.get(key) != value:
                raise UserError(
                    f"{out} was prepared with {key} {held.get(key)!r}, not {value!r}: --force starts over, "
                    "--out=FOLDER makes another"
                )
        files = self.files(self.config(**made["settings"], source=source)) if source else []  # type: ignore[call-arg]
        if files and stamp(files) != made["stamp"] and digest(files) != made["source_sha256"]:
            again = f"{made['command']} --out={shlex.quote(str(out))} --force"
            raise UserError(f"{source} has changed since {out} was prepared from it: {again}")
        return True

    def prepare(
        self, out: str | Path, tokenizer: str, source: str = "", force: bool = False, **options: Any
    ) -> Path:
        """The corpus, tokenised into the folder `out`. One that is whole, and of the same, is kept.

        tokenizer  "gpt2", "bytes", the path of a tokenizer.json, or "bpe<vocabulary size>": trained on the
                   train split; or "words" of a corpus that has words of its own
        source     where its text comes from, or its settings; "" for the standard ones
        force      starts over, whatever the folder holds
        options    the other fields of its configuration

        UserError for a folder made of something else (`is_prepared`), and for a damaged one.
        """
        if self.own_words != (tokenizer == WordTokenizer.name):
            raise UserError(f"tokenizer = {tokenizer!r}: a corpus of words takes words, others do not")
        out, options = Path(out), options | ({"source": source} if source else {})
        c: Any = self.config(out=str(out), force=force, **{"tokenizer": tokenizer, **options})
        try:
            with locked(out / ".lock"):
                if force or not self.is_prepared(out, tokenizer, **options):
                    prepare_splits(out, tokenizer, self.contents(c), self.described(c))
                for name in (made := read_made(out))["files"]:
                    check_prepared(out, name, made)
        finally:
            with contextlib.suppress(OSError):
                out.rmdir()  # unless something is in it
        return out

    def described(self, c: Any) -> dict[str, Any]:
        """What the manifest says of its command: the settings, the words to call it again, and its files."""
        values = {k: v for k, v in vars(c).items() if k not in ("out", "force")}
        if c.source and (path := real_path(c.source)).exists():
            values["source"] = str(path)
        usual = {f.name: f.default for f in fields(c)} | {"tokenizer": None}
        flags = [f"--{k}={v}" for k, v in values.items() if v != usual[k]]
        program = self.program.relative_to(CODE) if self.program.is_relative_to(CODE) else self.program
        return {
            "corpus": self.name,
            "command": shlex.join(["python", str(program), *flags]),
            "settings": {k: v for k, v in values.items() if k not in ("tokenizer", "source")},
            "stamp": stamp(files := self.files(c)),
            "source_sha256": digest(files),
        }

    def command(self, c: Any) -> int:
        """What the command of its prepare.py does; its exit code."""
        options = dict(vars(c))
        folder = self.folder_name(tokenizer_name(c.tokenizer), c.source)
        out = Path(options.pop("out") or DATA / self.name / folder)
        for split, info in read_made(self.prepare(out, **options))["splits"].items():
            # None: none is official
            complete = {True: "complete", False: "partial", None: ""}[info["complete"]]
            sizes = " ".join(f"{info[u]:>12,} {u}" for u in ("tokens", "words", "bytes") if u in info)
            print(f"{split:<10} {sizes}  {complete}".rstrip())
        print(f"prepared {out}", file=sys.stderr)
        return 0


def stamp(files: Iterable[Path]) -> str:
    """Digest of the names, sizes and times of `files`: changes when one may have changed."""
    stats = [(str(path), path.stat()) for path in files]
    return hashlib.sha256(repr([(n, s.st_size, s.st_mtime_ns) for n, s in stats]).encode()).hexdigest()


def digest(files: Iterable[Path]) -> str:
    """Digest of the names and bytes of `files`."""
    return hashlib.sha256(repr([(str(path), sha256_of(path)) for path in files]).encode()).hexdigest()


# -----------------------------------------------------------------------------
# Prepare


def prepare_splits(out: Path, tokenizer: str, contents: Contents, about: Mapping[str, Any] = {}) -> Path:
    """Tokenises `contents` into the prepared folder `out`, in place of what that holds. The manifest says
    `about`, too."""
    new, splits, given = out / ".new", contents.splits, given_tokenizer(tokenizer)
    shutil.rmtree(new, ignore_errors=True)  # of one that was killed
    try:
        # The tokenizer
        coder = WordTokenizer.of([*contents.words]) if contents.words else given
        if coder is None:
            if "train" not in splits:
                raise UserError(f"{tokenizer} is trained on the train split, which {contents.source} lacks")
            lines = chain.from_iterable(read_batches(splits["train"], tokenizer))
            coder = train_bpe(lines, int(tokenizer.removeprefix("bpe")))

        # The splits
        new.mkdir(parents=True)
        coder.save(new)
        made = {
            name: tokenise(new / f"{name}.bin", split, coder, contents.official.get(name, {}))
            for name, split in splits.items()
        }
        contents.finish(made)

        # The manifest, last
        record: dict[str, Any] = {key: getattr(coder, key) for key in ("fingerprint", "vocab_size")}
        record |= {"source": contents.source, "tokenizer": coder.name, "trained": given is None}
        record["splits"] = {name: tokens.info for name, tokens in made.items()}
        write_manifest(new, {**about, **record}, [path.name for path in new.iterdir()])

        # In place of what was there, and of the labels that belong to it
        old = [MANIFEST, "tokenizer.json"]
        with contextlib.suppress(OSError, ValueError):
            old += [Path(name).name for name in read_manifest(out)["files"]]
        for name in old:
            (out / name).unlink(missing_ok=True)
        for labels in out.glob("labels-*"):
            shutil.rmtree(labels)
        for path in sorted(new.iterdir(), key=lambda path: path.name == MANIFEST):
            path.rename(out / path.name)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return out


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


def tokenise(path: Path, split: Split, tokenizer: Tokenizer, official: Mapping[str, Any]) -> TokenFile:
    """Tokenises `split` into the token file `path`, counting and hashing the text on the way, and says on
    stderr what it lacks.

    Its info has no "words" and "bytes" where the tokens do not hold the text: see CHANGED.

    official  what the info of the whole official split says ("words", "sha256", ...); "complete" is whether
              all of it agrees, None when there is nothing to compare with
    """
    info: dict[str, Any] = {"tokens": 0, "words": 0, "lines": 0, "bytes": 0, "changed_lines": 0}
    sha256, cores = hashlib.sha256(), os.cpu_count() or 1
    pending: deque[Future[np.ndarray]] = deque()
    changes = list[int]()  # lines that do not come back from their ids, of each batch

    def encode(lines: list[str], text: str) -> np.ndarray:
        if tokenizer.by_line:
            return tokenizer.encode_each(lines)
        ids = tokenizer.encode_each([text])
        before, after = text.split("\n"), tokenizer.decode(ids).split("\n")
        same = len(before) == len(after)  # else line ends are among what is lost
        changes.append(sum(a != b for a, b in zip(before, after)) if same else len(lines))
        return ids

    def arrays() -> Iterator[np.ndarray]:
        with ThreadPoolExecutor(cores) as pool:
            for lines in read_batches(split, path.stem):
                text = "".join(lines)
                pending.append(pool.submit(encode, lines, text))
                raw = text.encode()
                sha256.update(raw)
                counts = {"words": len(text.split()), "lines": raw.count(b"\n"), "bytes": len(raw)}
                info.update((key, info[key] + count) for key, count in counts.items())
                if len(pending) > 2 * cores:  # memory stays bounded, and no core waits for this loop
                    yield pending.popleft().result()
            yield from (pending.popleft().result() for _ in range(len(pending)))

    ids = write_tokens(path, arrays(), tokenizer.vocab_size)
    info |= {"tokens": len(ids), "changed_lines": sum(changes), "sha256": sha256.hexdigest()}
    other = [f"{key} {info[key]} of {value}" for key, value in official.items() if info[key] != value]
    info["complete"] = not other if official else None
    if other:
        print(f"{path.stem} is partial: {', '.join(other)}", file=sys.stderr)
    changed, lines = info["changed_lines"], info["lines"]
    if changed:
        print(
            f"{path.stem}: {changed:,} of {lines:,} lines do not come back from their tokens", file=sys.stderr
        )
    if changed > CHANGED * lines:
        print(f"{path.stem}: so there is no perplexity a word, and no bits a byte", file=sys.stderr)
        del info["words"], info["bytes"]
    info |= {"length": split.length, "given": split.given} if split.length else {}
    info |= {"dropped": split.dropped, "absent": split.absent} if split.dropped else {}
    return TokenFile(ids, info, path)
