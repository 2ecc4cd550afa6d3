"""The comparison table: checkpoints -> perplexity, calibration and diversity, beside human text.

    python eval_diversity.py out/baseline-tiny out/entmax15-tiny --prompt_tokens=14 --new_tokens=50 --out=two
    python eval_diversity.py best=out/baseline last=out/baseline/last other=elsewhere/baseline
    python eval_diversity.py out/baseline --scorer out/large
    python eval_diversity.py --files a.txt b.jsonl --reference human.txt       # texts alone: no model

A row has its run's name, or the one given before "="; seeds of one training are one row, with intervals.
Three rows that no model wrote stand by: human text, unigram noise and a loop.

A GPT-2 of transformers (a folder) or of nanoGPT (ckpt.pt) is a row, too; alone it needs --data.

Honest protocol (default): perplexity of the sampled distribution on a whole held-out split; text metrics on
continuations alone, of held-out prompts, with a fixed token budget, all cut to the same number of words.
Human text is the standard: beside each value stands its distance to human.

`--protocol paper` scores as the paper did, beside its published numbers: perplexity on training windows,
prompts scored along. Its own defaults are the last lines of the help.
"""

from common.config import cli
from evaluate.measure import evaluate
from evaluate.settings import PaperConfig, read_settings
from evaluate.text import TextMeasure


def main(argv: list[str]) -> int:
    if "--files" in (argument.partition("=")[0] for argument in argv):
        from evaluate import file_texts

        return file_texts.main(argv)
    return evaluate(TextMeasure(), read_settings(PaperConfig, argv, __doc__))


if __name__ == "__main__":
    cli(main)
