"""Prepared folders: the token files of a corpus, and the tokenizer that made them.

The folder data/CORPUS/TOKENIZER holds train.bin, validation.bin and test.bin, each with its JSON beside it,
and meta.json, which is written last and says what the folder is. Any tokenizer but gpt2 is there as
tokenizer.json. A corpus with settings names the folder by those that are not the standard ones, too.
"""

import importlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from common.errors import UserError
from common.files import read_json, real_path
from common.places import CODE, WORK
from data.tokenizers import (
    GPT2Tokenizer,
    Tokenizer,
    bpe_size,
    exported_tokenizer,
    read_tokenizer,
    tokenizer_name,
)
from data.tokens import PREPARE, open_tokens

if TYPE_CHECKING:
    from training.checkpoint import Checkpoint

DATA = WORK / "data"
ROOT = WORK  # what `kept_path` is relative to
SPLITS = ("train", "validation", "test")
# what is read of meta.json, and what it may be: "splits" says of each whether it is complete
Split = Literal["train", "validation", "test"]
META = {"tokenizer": str, "source": str, "splits": dict[Split, bool | None]}


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a prepared folder.

    FileNotFoundError if the folder names none, ValueError if its file is damaged.
    """
    folder = Path(folder)
    trained = folder / "tokenizer.json"
    if trained.is_file():
        return read_tokenizer(trained)
    if read_meta(folder).get("tokenizer") == "gpt2":
        return GPT2Tokenizer()
    raise FileNotFoundError(f"{folder} has no tokenizer.json, and no meta.json that says gpt2: {PREPARE}")


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
        raise FileNotFoundError(
            f"the token files of {run} are not in {folder} any more: say where they are with --data=FOLDER, "
            f"or prepare them again ({program_of(Path(kept).parent.name)})"
        )
    return folder


def read_meta(folder: Path) -> dict[str, Any]:
    """What meta.json in `folder` says; {} when it is missing or damaged, which means: prepare again."""
    try:
        return read_json(folder / "meta.json", others=META)
    except (OSError, ValueError, AttributeError):
        return {}


def is_prepared(folder: Path, tokenizer: str, source: str = "") -> bool:
    """Whether `folder` is finished, of that tokenizer and (unless "") of that source, and all splits open."""
    meta = read_meta(folder)
    if not meta.get("splits") or meta.get("tokenizer") != tokenizer_name(tokenizer):
        return False
    if source and meta.get("source") not in (source, str(real_path(source))):
        return False
    try:
        fingerprint = load_tokenizer(folder).fingerprint
        files = [open_tokens(folder / f"{split}.bin") for split in meta["splits"]]
        return all(file.info.get("fingerprint") == fingerprint for file in files)
    except (OSError, ValueError):
        return False


def program_of(dataset: str) -> str:
    """The prepare.py of a corpus, as one names it from the project's folder."""
    known = corpora()
    return known[dataset].relative_to(CODE).as_posix() if dataset in known else "its prepare.py"


def corpora() -> dict[str, Path]:
    """The program of each corpus by the name of its folder: data/NAME/prepare.py, labs/NAME/prepare.py or
    labs/LAB/NAME/prepare.py."""
    programs = [path for home in ("data/*", "labs/*", "labs/*/*") for path in CODE.glob(f"{home}/prepare.py")]
    return {path.parent.name: path for path in sorted(programs, key=lambda path: path.parent.name)}


def corpus_of(dataset: str) -> Any:
    """The data.corpus.Corpus in the prepare.py of a corpus. UserError if there is none."""
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
    """Where a corpus is prepared: root/dataset/tokenizer, or what the corpus calls it with that source.

    So a corpus of other settings stands beside the standard one: data/grammar/words-train=50000. ValueError
    for an unknown dataset or setting.
    """
    name = corpus_of(dataset).folder_name(tokenizer_name(tokenizer), source)
    return Path(root) / dataset / name


def prepared(dataset: str, tokenizer: str, source: str = "", root: str | Path = DATA) -> Path:
    """The folder of a corpus (see `folder_of`), prepared first unless it is whole.

    dataset    a folder of data/ or labs/ with a prepare.py: "wikitext103", "text", "grammar", ...
    tokenizer  "gpt2", "bytes", "bpe<vocabulary size>" or the path of a tokenizer.json; "words" for corpora
               that have words of their own: all but the first three
    source     where the text comes from; "" takes what is prepared already, else the corpus' default

    ValueError for unknown names, for a folder that was prepared from another source, and for a damaged token
    file.
    """
    bpe_size(tokenizer)
    folder = folder_of(dataset, tokenizer, source, root)
    for split in read_meta(folder).get("splits", ()):
        # a missing file is made again; a damaged one is an error that the user sees
        with suppress(FileNotFoundError):
            open_tokens(folder / f"{split}.bin")
    if not is_prepared(folder, tokenizer, source):
        corpus_of(dataset).prepare(folder, tokenizer, source)
    elif later := newer_than(folder / "meta.json", source):
        print(
            f"{later} is newer than the prepared {folder}, which is taken as it is: has the text changed? "
            f"The prepare.py of {dataset}, with this --source and --tokenizer, looks"
        )
    return folder


def newer_than(prepared_at: Path, source: str) -> Path | None:
    """A file of a local `source` that was written after `prepared_at`; None if there is none."""
    at = Path(source) if source else None
    if at is None or not at.exists():
        return None
    files = [at] if at.is_file() else (path for path in at.rglob("*") if path.is_file())
    last = prepared_at.stat().st_mtime
    return next((path for path in files if path.stat().st_mtime > last), None)


def tokenizer_of(ckpt: "Checkpoint") -> Tokenizer:
    """The tokenizer a checkpoint was trained with: GPT-2's, or the one saved in its folder.

    UserError if another one lies there.
    """
    path = (ckpt.path.parent if ckpt.path.is_file() else ckpt.path) / "tokenizer.json"
    name, read = ckpt.config["tokenizer"], exported_tokenizer if ckpt.foreign else read_tokenizer
    tokenizer: Tokenizer = GPT2Tokenizer() if name == "gpt2" else read(path)
    if tokenizer.fingerprint != ckpt.config["tokenizer_fingerprint"]:
        raise UserError(f"{path} is not the tokenizer ({name}) that this model was trained with")
    return tokenizer
