"""What every prepare.py shares: from named splits of lines to a prepared folder, and the command line."""

import gzip
import hashlib
import os
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from tqdm import tqdm

from data.prepared import DATA, SPLITS, load_tokenizer, read_meta
from data.settings import PrepareConfig
from data.tokenizers import GPT2Tokenizer, Tokenizer, WordTokenizer, bpe_size, given_tokenizer, train_bpe
from data.tokens import TokenFile, open_tokens, write_tokens
from runtime.errors import UserError
from runtime.files import locked, remove_leftovers, write_json

BATCH = 2**18  # characters of text that are read, and tokenised, at a time
# Share of a text's lines that may not come back from its tokens. With more, a model scores another text than
# the original, whose words and bytes then do not say how long the scored one is.
CHANGED = 0.01


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


@contextmanager
def reading(path: Path) -> Iterator[IO[str]]:
    """A UTF-8 file, or a .gz of one, byte for byte: only "\\n" ends a line, "\\r" is a character in it.

    UserError naming it when what is read turns out to be damaged.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="\n") as file:
        try:
            yield file
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path} is not UTF-8 text ({error.reason} at byte {error.start} of a block): "
                "convert it, or download it again"
            ) from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"{path} is not a whole gzip file ({error}): download it again") from None


def file_lines(path: Path) -> Iterator[str]:
    """The lines of the file at `path`, see `reading`. One of more than BATCH characters comes in pieces."""
    with reading(path) as file:
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


def take(lines: Iterator[str]) -> list[str]:
    """The next lines, about BATCH characters of them; [] at the end."""
    batch, size = [], 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size >= BATCH:
            break
    return batch


def read_batches(split: Split, label: str) -> Iterator[list[str]]:
    """The lines of `split` in lists that fit in memory, with a progress bar in bytes on stderr."""
    lines = iter(split.lines())
    with tqdm(total=split.bytes, desc=label, unit="B", unit_scale=True, disable=None) as bar:
        while batch := take(lines):
            yield batch
            bar.update(sum(len(line.encode()) for line in batch))


def encode_batch(tokenizer: Tokenizer, lines: list[str]) -> tuple[np.ndarray, int]:
    """Ids of `lines`, and how many of the lines do not come back from them."""
    if tokenizer.by_line:
        return tokenizer.encode_each(lines), 0
    text = "".join(lines)
    ids = tokenizer.encode_each([text])
    was, now = text.split("\n"), tokenizer.decode(ids).split("\n")
    if len(was) != len(now):  # line ends are among what is lost
        return ids, len(lines)
    return ids, sum(a != b for a, b in zip(was, now))


def tokenise_split(
    path: Path, split: Split, tokenizer: Tokenizer, source: str, official: Mapping[str, Any] | None = None
) -> TokenFile:
    """Tokenise `split` into the token file `path`, counting and hashing the text on the way.

    Its info has no "words" and "bytes" where the tokens do not hold the text: see CHANGED.

    official  what the info of the whole official split says ("words", "sha256", ...); "complete" is whether
              all of it agrees, None when there is nothing to compare with
    """
    counts = {"words": 0, "lines": 0, "bytes": 0, "changed_lines": 0}
    sha256 = hashlib.sha256()

    def arrays() -> Iterator[np.ndarray]:
        cores = os.cpu_count() or 1
        pending: deque[Future[tuple[np.ndarray, int]]] = deque()

        def next_ids() -> np.ndarray:
            ids, changed = pending.popleft().result()
            counts["changed_lines"] += changed
            return ids

        with ThreadPoolExecutor(cores) as pool:
            for lines in read_batches(split, path.stem):
                pending.append(pool.submit(encode_batch, tokenizer, lines))
                text = "".join(lines)
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
        seen = {**counts, "sha256": sha256.hexdigest()}
        complete = all(seen[key] == value for key, value in official.items()) if official else None
        if counts["changed_lines"] > CHANGED * counts["lines"]:
            del seen["words"], seen["bytes"]
        return {
            "tokenizer": tokenizer.name,
            "fingerprint": tokenizer.fingerprint,
            **seen,
            **({"length": split.length, "given": split.given} if split.given else {}),
            **({"dropped": split.dropped, "absent": split.absent} if split.dropped else {}),
            "source": source,
            "complete": complete,
        }

    return write_tokens(path, arrays(), tokenizer.vocab_size, info)


def prepare_splits(
    out: Path,
    tokenizer: str,
    source: str,
    splits: Mapping[str, Split],
    official: Mapping[str, Mapping[str, Any]] | None = None,
    force: bool = False,
    own: Tokenizer | None = None,
    beside: Callable[[], None] | None = None,
) -> Path:
    """Tokenise `splits` into the folder `out`, which becomes a prepared folder. What is whole is kept.

    tokenizer  "gpt2", "bytes", the path of a tokenizer.json, or "bpe<vocabulary size>": trained on the train
               split; or the name of `own`
    source     what the record says; a folder prepared from another one is refused (UserError) unless
               `force`, which starts over
    official   per split, see tokenise_split
    own        the tokenizer that a corpus brings with it
    beside     writes what else belongs to the folder, all or nothing: called when the splits are whole,
               before the folder says that it is
    """
    bpe_size(tokenizer)
    own = own or given_tokenizer(tokenizer)
    if own is None and tokenizer == WordTokenizer.name:
        raise UserError(
            f"tokenizer {tokenizer!r}: this corpus has no word list of its own: "
            "use gpt2, bytes, bpe<vocabulary size> or a tokenizer.json"
        )
    tokenizer = own.name if own else tokenizer
    out, official = Path(out), official or {}
    with locked(out / ".lock"):  # the others (ranks of one run) wait, then find it whole
        remove_leftovers(out)
        if force:
            _start_over(out)
        _refuse_other(out, tokenizer, source, splits)
        meta = {"tokenizer": tokenizer, "source": source}
        # says whose the folder is, before anything else is in it
        if not meta.items() <= read_meta(out).items():
            write_json(out / "meta.json", meta)
        coder = _get_tokenizer(out, tokenizer, source, splits, own)
        complete = {}
        for name, split in splits.items():
            path = out / f"{name}.bin"
            info = _whole_info(path, coder.fingerprint)
            if info is None:
                info = tokenise_split(path, split, coder, source, official.get(name)).info
            complete[name] = info["complete"]
            if complete[name] is False:
                print(f"{name} is partial: {_compare(info, official.get(name, {}))}", file=sys.stderr)
            _say_changed(name, info)
        if beside:
            beside()
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
    files = [f"{split}{end}" for split in SPLITS for end in (".json", ".bin")]
    for name in ("meta.json", "tokenizer.json", *files):
        (out / name).unlink(missing_ok=True)


def _whole_info(path: Path, fingerprint: str | None = None) -> dict[str, Any] | None:
    """The info of the token file at `path` if it is whole (and has that fingerprint), else None."""
    try:
        info = open_tokens(path).info
    except (ValueError, FileNotFoundError):
        return None
    return info if fingerprint in (None, info.get("fingerprint")) else None


def _compare(info: Mapping[str, Any], official: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{info[key]:,} {key} of {value:,}" if isinstance(value, int) else f"another {key}"
        for key, value in official.items()
        if key in info and info[key] != value
    )


def _say_changed(name: str, info: Mapping[str, Any]) -> None:
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


def _refuse_other(out: Path, tokenizer: str, source: str, splits: Mapping[str, Split]) -> None:
    """UserError if `out` was prepared from another source or tokenizer, or the source has changed since."""
    infos = {name: info for name in SPLITS if (info := _whole_info(out / f"{name}.bin"))}
    # alone it claims nothing
    held_by_meta = read_meta(out) if infos or (out / "tokenizer.json").is_file() else {}
    for held in (held_by_meta, *infos.values()):
        for key, wanted in (("source", source), ("tokenizer", tokenizer)):
            if key in held and held[key] != wanted:
                raise UserError(
                    f"{out} was prepared from {key} {held[key]!r}, not {wanted!r}: leave "
                    f"--{key} out to use it as it is, "
                    "or prepare.py --force to start over (or with another --out)"
                )
    for name, info in infos.items():
        if name not in splits:
            continue
        _, size, sha256, *_ = splits[name]
        remedy = "use --force to start over, or another --out"
        if size not in (None, info.get("bytes", size)):
            raise UserError(
                f"{out / name}.bin was made from {info['bytes']} bytes and {source} now has {size}: {remedy}"
            )
        if sha256 not in (None, info.get("sha256")):
            raise UserError(f"{out / name}.bin was made from another text than {source} now has: {remedy}")


def _get_tokenizer(
    out: Path, name: str, source: str, splits: Mapping[str, Split], own: Tokenizer | None = None
) -> Tokenizer:
    """The tokenizer `name`: gpt2, or the one that `out` holds.

    Where it holds none: the corpus' own, or one trained on the train split, saved there.
    """
    if name == "gpt2":
        return GPT2Tokenizer()
    if (out / "tokenizer.json").is_file():
        found = load_tokenizer(out)
        if found.name != name or (own and found.fingerprint != own.fingerprint):
            another = "another " if found.name == name else ""
            raise UserError(
                f"{out / 'tokenizer.json'} is {another}{found.name}, not {name}: "
                "use --force, or another --out"
            )
        return found
    if own is not None:
        own.save(out)
        return own
    if "train" not in splits:
        raise UserError(
            f"{name} is trained on the train split, which {source} lacks: add it, or use --tokenizer gpt2"
        )
    vocab_size = bpe_size(name)
    assert vocab_size is not None  # all others are the corpus' own, or given
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


def main(prepare: Callable[..., Path], folder: Path, c: PrepareConfig) -> int:
    """What the command of a prepare.py does; its exit code: 0, or 130 for Ctrl-C.

    folder     the corpus' own; its prepared folders are by default data/CORPUS/TOKENIZER, see
               PrepareConfig.folder_name
    c          all but `out` is given to `prepare`
    """
    options = dict(vars(c))
    bpe_size(options["tokenizer"])  # before any download
    out = Path(options.pop("out") or DATA / folder.name / c.folder_name())
    try:
        print(summary(prepare(out, **options)))
        print(f"prepared {out}", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped; run it again to go on: whole splits are kept", file=sys.stderr)
        return 130
    return 0
