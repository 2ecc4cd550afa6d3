"""The corpora of the core: the contract of tests/corpus_contract.py."""

from pathlib import Path

from common.places import CODE, corpora
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
    "wikitext103": Example(wiki, lambda folder: wiki(folder, 1), SIZES, "bytes"),
}
pytest_generate_tests = each(EXAMPLES)


def test_each_corpus_of_the_core_has_an_example():
    assert {name for name, path in corpora().items() if path.is_relative_to(CODE / "data")} == EXAMPLES.keys()
