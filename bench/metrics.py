"""Self-BLEU of many texts: diversity.self_bleu and self_bleu_sacre, beside nltk and sacreBLEU on fewer texts.

    python bench/metrics.py [--texts 1000 10000] [--words 200] [--rounds 5] [--set 100] [--some 10]
                            [--out bench/metrics.json]

The texts are of made-up words with Zipf frequencies. Some are punctuation or have it inside, as in WikiText.
Our two functions take turns; medians count. The libraries take minutes for 1,000 texts, so they get two
smaller tasks, once each:

- the self-BLEU of the first --set texts, whose float must equal ours
- --some of the smallest number of texts, each against all the others. That gives seconds a text; what all of
  them would take is extrapolated
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from bench.common import median, skipped, turns, write
from evaluation import diversity

VOCAB = 20000
# a tenth of the words are one of these with the word's number
INSIDE = ("@-@", "1,000", "3.5", "co-op", "o'clock", "&amp;", "etc.", "(so", "called)", "a/b")


def zipf_texts(texts: int, words: int, seed: int = 0) -> list[list[str]]:
    """The same texts for the same seed: the k-th most frequent word has frequency ~ 1/k."""
    rng = np.random.default_rng(seed)
    made_up = [INSIDE[i // 10 % 10] + str(i) if i % 10 == 0 else f"w{i}" for i in range(3, VOCAB)]
    vocabulary = np.array([",", ".", '"', *made_up])
    p = 1 / np.arange(1, VOCAB + 1)
    return [vocabulary[row].tolist() for row in rng.choice(VOCAB, (texts, words), p=p / p.sum())]


def nltk_bleu() -> Callable[[list[list[str]], list[str]], float]:
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    method1 = SmoothingFunction().method1
    return lambda others, text: sentence_bleu(others, text, smoothing_function=method1)


def sacre_bleu() -> Callable[[list[str], str], float]:
    import sacrebleu

    return lambda others, text: sacrebleu.sentence_bleu(text, others).score


def library(bleu: Callable, texts: list, some: int) -> tuple[list[float], float]:
    """The scores of the first `some` texts, each against all others, and the seconds."""
    start = time.perf_counter()
    scores = [bleu(texts[:i] + texts[i + 1 :], texts[i]) for i in range(some)]
    return scores, time.perf_counter() - start


def compare(name: str, ours: Callable, bleu: Callable, texts: list, whole: int, some: int) -> dict:
    scores, seconds = library(bleu, texts[:whole], whole)
    theirs, value = math.fsum(scores) / whole, ours(texts[:whole])
    start = time.perf_counter()
    ours(texts[:whole])
    result = {
        "program": name,
        "set": whole,
        "self_bleu": theirs,
        "ours": value,
        "equal": theirs == value,
        "seconds": seconds,
        "our_seconds": time.perf_counter() - start,
    }
    _, seconds = library(bleu, texts, some)
    result |= {
        "others": len(texts) - 1,
        "scored": some,
        "seconds_a_text": seconds / some,
        "extrapolated_seconds": seconds / some * len(texts),
    }
    agree = "equal" if theirs == value else "DIFFER"
    print(
        f"{name}: {result['seconds']:.2f} s for all of {whole} texts, ours {result['our_seconds']:.4f} s, "
        f"floats {agree}: {theirs!r}; "
        f"{seconds / some:.3f} s a text against {len(texts) - 1} others: "
        f"{result['extrapolated_seconds']:.0f} s for all (extrapolated)",
        flush=True,
    )
    return result


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--texts", type=int, nargs="+", default=[1000, 10000])
    p.add_argument("--words", type=int, default=200)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--set", type=int, default=100, help="texts that the libraries compare with one another")
    p.add_argument("--some", type=int, default=10, help="texts that the libraries compare with all others")
    p.add_argument("--out", type=Path)
    args = p.parse_args()
    results = []
    for N in args.texts:
        words = zipf_texts(N, args.words)
        programs = {
            "metrics.self_bleu": partial(diversity.self_bleu, words),
            "metrics.self_bleu_sacre": partial(diversity.self_bleu_sacre, [" ".join(text) for text in words]),
        }
        for name, times in turns(programs, args.rounds).items():
            middle, slowest = median(times), max(times)
            r = {"program": name, "texts": N, "words": args.words, "seconds": middle, "slowest": slowest}
            results.append(r)
            print(
                f"{name:24} {N:6} texts of {args.words} words: {middle:.4f} s "
                f"(slowest of {args.rounds}: {slowest:.4f})",
                flush=True,
            )
    words = zipf_texts(min(args.texts), args.words)
    whole, some = (min(n, len(words)) for n in (args.set, args.some))
    for name, own, load, texts in (
        ("nltk", diversity.self_bleu, nltk_bleu, words),
        ("sacrebleu", diversity.self_bleu_sacre, sacre_bleu, [" ".join(text) for text in words]),
    ):
        try:
            bleu = load()
        except ImportError:
            skipped(name, f"pip install {name}")
            continue
        results.append(compare(name, own, bleu, texts, whole, some))
    write(args.out, {"rounds": args.rounds, "vocab": VOCAB}, results)
    return 0 if all(r.get("equal", True) for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
