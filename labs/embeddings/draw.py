"""Where the texts of a table's rows lie beside human ones: t-SNE of their embeddings by a language model.

    python labs/embeddings/draw.py out/again/heads --scorer out/baseline-brief

Writes TABLE.embeddings.png, which report.py then shows. TABLE is the name of a table's store without its
ending; the texts lie in TABLE.samples, as many of each row as the text measure's --texts_kept. The scorer is
a run, as that of eval_diversity.py, and embeds a text as the mean of its hidden states. It should know the
language well, and be no row of the table. The number at each panel is the leave-one-out accuracy of nearest
neighbours among as many human texts and texts of the row, in the embeddings themselves: .5 where they cannot
be told apart.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.config import Positive, Seed, cli, read
from common.device import get_device
from common.errors import UserError, reading
from common.files import beside, check_writable
from common.log import progress_bar
from labs.embeddings.tsne import HUMAN, check_rows, draw_tsne, embed
from labs.scorers.scorer import Scorer
from tables.store import Store
from tables.text import TextMeasure
from tables.views import read_texts, samples_file


@dataclass
class EmbeddingsConfig:
    # fmt: off
    table: str                      # results/NAME: the table with the texts
    scorer: str = ""                # needed: a run
    rows: list[str] = field(default_factory=list)  # empty: all but unigram noise and the loop
    texts: Positive = 200           # of each row, the first ones
    seed: Seed = 0                  # of t-SNE
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    # fmt: on

    def __post_init__(self) -> None:
        if not self.scorer:
            raise UserError("scorer is missing")


def texts_of(c: EmbeddingsConfig) -> dict[str, list[str]]:
    """row -> its texts, the human ones first. UserError for a row that the table has no texts of."""
    table = Path(c.table)
    rows = Store(beside(table, ".jsonl")).rows(TextMeasure.name)
    known = {row["name"]: bool(row.get("reference")) for row in rows}
    names = c.rows or [name for name, reference in known.items() if not reference]
    out = {}
    for name in dict.fromkeys((HUMAN, *names)):
        file = samples_file(table, name)
        if name not in known or not file.is_file():
            raise UserError(f"{beside(table, '.samples')} has no texts of {name!r}")
        with reading(file):
            out[name] = [text for text in read_texts(file) if text.strip()][: c.texts]
    return out


def main(argv: list[str]) -> int:
    c = read(EmbeddingsConfig, argv, __doc__)
    texts, out = texts_of(c), beside(Path(c.table), ".embeddings")
    check_rows(texts)
    check_writable(beside(out, ".png"))
    scorer = Scorer(c.scorer, get_device(c.device))
    bar = progress_bar(texts.items(), desc=f"embedded by {scorer.name}", leave=False)
    for path in draw_tsne({name: embed(scorer, of_row) for name, of_row in bar}, out, c.seed):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    cli(main)
