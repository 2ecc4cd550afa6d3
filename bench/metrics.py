"""Self-BLEU of many texts: self_bleu_sacre of evaluation/diversity.py, beside sacreBLEU on fewer texts.

    python bench/metrics.py [--texts 1000 10000] [--words 200] [--rounds 5] [--set 100] [--some 10]
                            [--out bench/metrics.json]

The texts are of made-up words with Zipf frequencies. Some are punctuation or have it inside, as in WikiText.
Medians count. sacreBLEU takes minutes for 1,000 texts, so it gets two smaller tasks, once each:

- the self-BLEU of the first --set texts, whose float must equal ours
- --some of the smallest number of texts, each against all the others. That gives seconds a text; what all of
  them would take is extrapolated
"""

import math
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import sacrebleu

from bench.common import arguments, median, timed, turns, write
from evaluation.diversity import self_bleu_sacre

VOCAB = 20000
# a tenth of the words are one of these with the word's number
INSIDE = ("@-@", "1,000", "3.5", "co-op", "o'clock", "&amp;", "etc.", "(so", "called)", "a/b")


def zipf_texts(texts: int, words: int, seed: int = 0) -> list[str]:
    """The same texts for the same seed: the k-th most frequent word has frequency ~ 1/k."""
    rng = np.random.default_rng(seed)
    made_up = [INSIDE[i // 10 % 10] + str(i) if i % 10 == 0 else f"w{i}" for i in range(3, VOCAB)]
    vocabulary = np.array([",", ".", '"', *made_up])
    p = 1 / np.arange(1, VOCAB + 1)
    return [" ".join(vocabulary[row]) for row in rng.choice(VOCAB, (texts, words), p=p / p.sum())]


def sacrebleus(texts: list[str], some: int) -> tuple[list[float], float]:
    """sacreBLEU's scores of the first `some` texts, each against all others, and the seconds."""
    start = time.perf_counter()
    scores = [sacrebleu.sentence_bleu(texts[i], texts[:i] + texts[i + 1 :]).score for i in range(some)]
    return scores, time.perf_counter() - start


def compare(texts: list[str], whole: int, some: int) -> dict:
    scores, seconds = sacrebleus(texts[:whole], whole)
    theirs, value = math.fsum(scores) / whole, self_bleu_sacre(texts[:whole])
    result = {
        "program": "sacrebleu",
        "set": whole,
        "self_bleu": theirs,
        "ours": value,
        "equal": theirs == value,
        "seconds": seconds,
        "our_seconds": timed(partial(self_bleu_sacre, texts[:whole])),
    }
    _, seconds = sacrebleus(texts, some)
    result |= {
        "others": len(texts) - 1,
        "scored": some,
        "seconds_a_text": seconds / some,
        "extrapolated_seconds": seconds / some * len(texts),
    }
    agree = "equal" if theirs == value else "DIFFER"
    print(
        f"sacreBLEU: {result['seconds']:.2f} s for all of {whole} texts, ours {result['our_seconds']:.4f} s, "
        f"floats {agree}: {theirs!r}; "
        f"{seconds / some:.3f} s a text against {len(texts) - 1} others: "
        f"{result['extrapolated_seconds']:.0f} s for all (extrapolated)",
        flush=True,
    )
    return result


def main() -> int:
    p = arguments(__doc__, rounds=5)
    p.add_argument("--texts", type=int, nargs="+", default=[1000, 10000])
    p.add_argument("--words", type=int, default=200)
    p.add_argument("--set", type=int, default=100, help="texts that sacreBLEU compares with one another")
    p.add_argument("--some", type=int, default=10, help="texts that sacreBLEU compares with all others")
    args = p.parse_args()
    results = []
    for N in args.texts:
        programs = {"metrics.self_bleu_sacre": partial(self_bleu_sacre, zipf_texts(N, args.words))}
        for name, times in turns(programs, args.rounds).items():
            middle, slowest = median(times), max(times)
            r = {"program": name, "texts": N, "words": args.words, "seconds": middle, "slowest": slowest}
            results.append(r)
            print(
                f"{name:24} {N:6} texts of {args.words} words: {middle:.4f} s "
                f"(slowest of {args.rounds}: {slowest:.4f})",
                flush=True,
            )
    texts = zipf_texts(min(args.texts), args.words)
    results.append(compare(texts, min(args.set, len(texts)), min(args.some, len(texts))))
    write(args, ["rounds"], results, vocab=VOCAB)
    return 0 if results[-1]["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
