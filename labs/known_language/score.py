"""How far a model of the known language is from its truth, whoever has trained it: its lab has a page.

    python labs/known_language/score.py FOLDER    a folder that transformers loads
    python labs/known_language/score.py FILE      log-probabilities (T, V) in a .npy file

Means over the tokens of all documents but the first, each with half of its 95% interval over documents.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.config import AtLeast2, Positive, cli, read
from common.errors import checking
from labs.known_language.grammar.prepare import GrammarSettings
from nanoheads.truth import Language


@dataclass
class ScoreConfig:
    # fmt: off
    model: str               # the folder or the file
    split: Literal["train", "validation", "test"] = "test"
    source: str = ""         # settings of the language, as of prepare.py: "seed=2 train=500000"
    context: AtLeast2 = 128  # tokens that the model reads at once
    batch: Positive = 16     # windows of so many tokens that it reads at a time
    # fmt: on


def main(argv: list[str]) -> int:
    c = read(ScoreConfig, argv, __doc__)
    with checking():
        language = Language(**vars(GrammarSettings.parse(c.source)))
        score = language.score(c.model, c.split, c.context, c.batch)
    print(f"{score['tokens']:,} tokens of {score['documents']:,} documents, {c.split}, context {c.context}")
    for key, value in score.items():
        if f"{key}_ci" in score:
            print(f"{key:<20}{value:9.4f} ± {score[f'{key}_ci']:.4f}")
    return 0


if __name__ == "__main__":
    cli(main)
