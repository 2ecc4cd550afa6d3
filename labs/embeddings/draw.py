"""Where the texts of a table's rows lie beside human ones: t-SNE of their embeddings by a language model.

    python labs/embeddings/draw.py results/heads_250 --scorer out/baseline-small

Writes TABLE.embeddings.png and .svg, which report.py then shows. TABLE is the name of a table's files without
their endings; its texts lie in TABLE.samples. The scorer is a run or a folder of transformers, as that of
eval_diversity.py, and embeds a text as the mean of its hidden states. It should know the language well, and
be no row of the table. The number at each panel is the leave-one-out accuracy of nearest neighbours among
as many human texts and texts of the row, in the embeddings themselves: .5 where they cannot be told apart.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from runtime.configurator import check_seed
from runtime.door import Program
from runtime.errors import UserError


@dataclass
class EmbeddingsConfig:
    # fmt: off
    table: str                      # results/NAME: the table, without its ending
    scorer: str = ""                # needed: a run, or a folder of transformers
    rows: list[str] = field(default_factory=list)  # empty: all but unigram noise and the loop
    texts: int = 200                # of each row, the first ones
    seed: int = 0                   # of t-SNE
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    # fmt: on

    def check(self) -> None:
        """UserError naming the value that cannot work."""
        if not self.scorer:
            raise UserError("--scorer is missing: the run or the folder that embeds, --scorer=out/NAME")
        if self.texts < 1:
            raise UserError(f"texts = {self.texts}: must be at least 1")
        check_seed(self.seed)


program = Program(
    __name__, __doc__, EmbeddingsConfig, "sklearn", "scipy", "tabulate", "sacrebleu", "matplotlib"
)

from tqdm import tqdm

from evaluation.scorer import open_scorer
from labs.embeddings.tsne import HUMAN, check_rows, draw, embed
from measures.store import Store
from measures.views import beside, read_texts, samples_file
from runtime.configurator import cli
from runtime.device import get_device
from runtime.files import check_writable, foreign


def texts_of(c: EmbeddingsConfig) -> dict[str, list[str]]:
    """row -> its texts, the human ones first. UserError for a row that the table has no texts of."""
    table = Path(c.table)
    known = {row["name"]: "reference" in row for row in Store(beside(table, ".jsonl")).rows("text")}
    asked = c.rows or [name for name, reference in known.items() if not reference]
    out = {}
    for name in dict.fromkeys((HUMAN, *asked)):
        file = samples_file(table, name)
        if name not in known or not file.is_file():
            having = ", ".join(n for n in known if samples_file(table, n).is_file())
            raise UserError(
                f"{beside(table, '.samples')} has no texts of {name!r}; it has {having or 'none'}: name the "
                "table without its ending, and measure the row with --texts_kept=0"
            )
        with foreign(file, "texts, a JSON string a line: make the table again"):
            out[name] = [text for text in read_texts(file) if text.strip()][: c.texts]
    return out


@program
def main(c: EmbeddingsConfig) -> int:
    texts, out = texts_of(c), beside(Path(c.table), ".embeddings")
    check_rows(texts)
    check_writable(beside(out, ".svg"))
    scorer = open_scorer(c.scorer, get_device(c.device))
    bar = tqdm(texts.items(), desc=f"embedded by {scorer.name}", leave=False)
    for path in draw({name: embed(scorer, of_row) for name, of_row in bar}, out, c.seed):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    cli(main)()
