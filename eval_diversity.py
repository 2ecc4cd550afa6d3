"""The comparison table: checkpoints -> perplexity, calibration and diversity, beside human text.

    python eval_diversity.py out/baseline-tiny out/entmax15-tiny --prompt_tokens=14 --new_tokens=50 --out=two
    python eval_diversity.py best=out/baseline last=out/baseline/last other=elsewhere/baseline
    python eval_diversity.py out/baseline --scorer out/large
    python eval_diversity.py --files a.txt b.jsonl --reference human.txt       # texts alone: no model

A row has its run's name, or the one given before "="; seeds of one training are one row, with intervals.
Three rows that no model wrote stand by: human text, unigram noise and a loop.

A model of transformers or nanoGPT is a row once labs/transformers/import.py has read it; alone it needs
--data.

Perplexity of the sampled distribution on a whole held-out split; text metrics on continuations alone, of
held-out prompts, with a fixed token budget, all cut to the same number of words.
Human text is the standard: beside each value stands its distance to human.
The paper's own protocol: python table.py --measure=paper.
"""

from common.config import cli, read
from evaluate.settings import TextConfig
from tables.measure import evaluate
from tables.text import TextMeasure


def main(argv: list[str]) -> int:
    if "--files" in (argument.partition("=")[0] for argument in argv):
        from tables import file_texts

        return file_texts.main(argv)
    return evaluate(TextMeasure(), read(TextConfig, argv, __doc__))


if __name__ == "__main__":
    cli(main)
