"""Opens what is prepared: the folder of a corpus and its tokenizer. data/tokens.py opens its splits.

A folder with a prepare.py is a corpus (data/prepare/corpus.py). The prepared folder data/CORPUS/TOKENIZER
holds train.bin, validation.bin and test.bin, any tokenizer but gpt2 as tokenizer.json, and manifest.json,
which says what they were made of and the SHA-256 of each.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UserError
from common.places import CODE, WORK, corpora
from data.tokens import check_prepared, read_made

if TYPE_CHECKING:  # what runs a tokenizer imports it: a training needs none
    from data.tokenizers import Tokenizer

DATA = WORK / "data"
ROOT = WORK  # what `kept_path` is relative to


def corpus_of(dataset: str) -> Any:
    """The data.prepare.corpus.Corpus in a prepare.py, imported when it is asked for. UserError if there is no
    such corpus."""
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
    from data.tokenizers import tokenizer_name

    return Path(root) / dataset / corpus_of(dataset).folder_name(tokenizer_name(tokenizer), source)


def prepared(dataset: str, tokenizer: str, source: str = "", root: str | Path = DATA) -> Path:
    """The folder of a corpus (see `folder_of`), prepared first if it is not there.

    dataset    a folder of data/ or labs/ with a prepare.py: "wikitext103", "text", "grammar", ...
    tokenizer  see Corpus.prepare
    source     where the text comes from; "" takes what is prepared already, else the corpus' default

    UserError for unknown names, and for a folder that was prepared from another source, or from a text that
    has changed since. Its files are compared with the manifest where they are opened.
    """
    folder, corpus = folder_of(dataset, tokenizer, source, root), corpus_of(dataset)
    if not corpus.is_prepared(folder, tokenizer, source):
        corpus.prepare(folder, tokenizer, source)
    return folder


def load_tokenizer(folder: str | Path) -> "Tokenizer":
    """The tokenizer of a prepared folder. OSError if it is none, UserError if it is damaged."""
    from data.tokenizers import GPT2Tokenizer, read_tokenizer

    file = tokenizer_file(Path(folder), read_made(folder))
    return read_tokenizer(file) if file else GPT2Tokenizer()


def tokenizer_file(folder: Path, made: dict[str, Any]) -> Path | None:
    """The tokenizer.json of a prepared folder; None for GPT-2's, whose files everybody can have."""
    return None if made["tokenizer"] == "gpt2" else check_prepared(folder, "tokenizer.json", made)


# -----------------------------------------------------------------------------
# What a run keeps of its corpus


def kept_path(folder: Path) -> str:
    """`folder` as a checkpoint keeps it: relative to the project if it lies inside, so that both can move.

    Else the absolute path.
    """
    folder = Path(folder).absolute()
    return str(folder.relative_to(ROOT)) if folder.is_relative_to(ROOT) else str(folder)


def found_path(ckpt: Any) -> Path:
    """The prepared folder of a run, which `kept_path` wrote down. FileNotFoundError if it is gone."""
    folder, c = ROOT / ckpt.config.data, ckpt.config
    if not folder.is_dir():
        raise FileNotFoundError(
            f"the token files of {ckpt.path} are not in {folder}: prepare {c.dataset} there again, "
            f"with the tokenizer {c.tokenizer}, or give --data=FOLDER"
        )
    return folder


def tokenizer_of(ckpt: Any) -> "Tokenizer":
    """The tokenizer that a checkpoint was trained with: GPT-2's, or the one saved in its folder.

    UserError if another one lies there.
    """
    from data.tokenizers import GPT2Tokenizer, read_tokenizer

    path, name = ckpt.path / "tokenizer.json", ckpt.config.tokenizer
    tokenizer: Tokenizer = GPT2Tokenizer() if name == "gpt2" else read_tokenizer(path)
    if tokenizer.fingerprint != ckpt.config.tokenizer_fingerprint:
        raise UserError(f"{path} is not the tokenizer ({name}) that this model was trained with")
    return tokenizer
