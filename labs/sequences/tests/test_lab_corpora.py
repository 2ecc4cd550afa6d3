"""The corpora of the labs: the contract of tests/corpus_contract.py."""

from common.places import CODE, corpora
from tests.corpus_contract import *  # noqa: F403
from tests.corpus_contract import Example, each

PAPER = "train=30 validation=4 test=3", "train=30 validation=4 test=3 seed=2", (3001, 401, 301)
WORDS = "train=6000 validation=1500 test=1500 themes=5 nouns=12 verbs=8 adjectives=6 adverbs=4"
MAZES = "height=5 width=7 walls=2 distance=3 train=30 validation=4 test=3"
CLIMBS = "simulated length=8 train=30 validation=6 test=12"


def paper(task: str) -> Example:
    source, another, sizes = PAPER
    return Example(f"{task} {source}", f"{task} {another}", sizes, length=100, truth=True)


EXAMPLES = {
    **{f"synthetic {task}": paper(task) for task in ("product", "step", "permutation", "walk")},
    "grammar": Example(WORDS, WORDS + " seed=4", (6027, 1516, 1501), truth=True),
    "mazes": Example(MAZES, MAZES + " seed=2", (2101, 281, 211), length=70, given=35, truth=True),
    "climbs": Example(CLIMBS, CLIMBS + " seed=2", (241, 49, 97), length=8, given=1, truth=True),
    "image_tokens": Example(
        "digits patches codes=6", "digits patches codes=7", (21982, 2449, 6121), length=17, given=1
    ),
}
HERE = {name for name, path in corpora().items() if path.is_relative_to(CODE / "labs")}
pytest_generate_tests = each({name: e for name, e in EXAMPLES.items() if name.split()[0] in HERE})


def test_each_corpus_of_the_labs_has_an_example():
    assert HERE <= {name.split()[0] for name in EXAMPLES}
