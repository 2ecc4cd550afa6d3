"""The corpora of the core: the contract of tests/corpus_contract.py."""

from pathlib import Path

from common.places import CODE, corpora
from data.open import corpus_of, load_tokenizer
from data.tokens import open_tokens
from tests.corpus_contract import *  # noqa: F403
from tests.corpus_contract import Example, each
from tests.fixtures import synthetic_text


def novels(folder: Path, seed: int = 0) -> str:
    for split, lines in {"train": 40, "validation": 9, "test": 8}.items():
        (folder / split).mkdir(parents=True)
        (folder / split / "text.txt").write_bytes(synthetic_text(lines, seed + lines).encode())
    return str(folder)


def wiki(folder: Path, seed: int = 0) -> str:
    folder.mkdir()
    for split, lines in {"train": 40, "valid": 9, "test": 8}.items():
        (folder / f"wiki.{split}.tokens").write_bytes(synthetic_text(lines, seed + lines).encode())
    return str(folder)


SIZES = 1961, 444, 405
EXAMPLES = {
    "text": Example(novels, lambda folder: novels(folder, 1), SIZES, "bytes"),
    "tale": Example(novels, lambda folder: novels(folder, 1), SIZES, "bytes"),
    "wikitext103": Example(wiki, lambda folder: wiki(folder, 1), SIZES, "bytes"),
}
pytest_generate_tests = each(EXAMPLES)


def test_each_corpus_of_the_core_has_an_example():
    assert {name for name, path in corpora().items() if path.is_relative_to(CODE / "data")} == EXAMPLES.keys()


def test_the_book_comes_along(tmp_path):
    """The bytes of its three files, less the line end that would come before another document."""
    out = corpus_of("tale").prepare(tmp_path / "tale", "bytes")
    tokens = [open_tokens(out / f"{split}.bin").info["bytes"] for split in ("train", "validation", "test")]
    assert tokens == [289_544, 27_547, 44_147]
    assert load_tokenizer(out).decode(open_tokens(out / "train.bin").ids[:17]) == "A Little Princess"
