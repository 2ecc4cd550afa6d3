"""metrics.py against nltk, sacrebleu and numpy, to the last bit where it claims so, and against worked examples."""

import itertools
import math
import random

import numpy as np
import pytest
import sacrebleu
import torch
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from evaluation import metrics


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def others(texts: list, i: int) -> list:
    return texts[:i] + texts[i + 1 :]


def nltk_self_bleu(texts: list[list], max_n: int) -> float:
    method1 = SmoothingFunction().method1
    return mean(
        [sentence_bleu(others(texts, i), text, (1 / max_n,) * max_n, method1) for i, text in enumerate(texts)]
    )


def sacre_self_bleu(texts: list[str]) -> float:
    return mean([sacrebleu.sentence_bleu(text, others(texts, i)).score for i, text in enumerate(texts)])


def random_texts(seed: int) -> list[list[str]]:
    """2 to 8 texts of 0 to 25 words out of 1 to 30.

    There are few words, so that they repeat and some text has the most of one; unequal lengths, for the brevity
    penalty; and some copies.
    """
    rng = random.Random(seed)
    vocabulary = [f"w{i}" for i in range(rng.choice([1, 2, 3, 5, 10, 30]))]
    longest = rng.choice([1, 3, 5, 10, 25])
    texts = [rng.choices(vocabulary, k=rng.randint(0, longest)) for _ in range(rng.randint(2, 8))]
    if rng.random() < 0.2:
        texts.append(list(texts[0]))
    return texts if any(texts) else [*texts, ["w0"]]


# ---- self-BLEU -----------------------------------------------------------------------------------


def test_self_bleu_is_nltk_to_the_last_bit():
    values = []
    for seed in range(300):
        texts, max_n = random_texts(seed), 1 + seed % 5
        values.append(metrics.self_bleu(texts, max_n))
        assert values[-1] == nltk_self_bleu(texts, max_n), (seed, texts)
    assert len(set(values)) > 200  # the sets are not all trivial


def test_self_bleu_sacre_is_sacrebleu_to_the_last_bit():
    values = []
    for seed in range(300):
        texts = [" ".join(text) for text in random_texts(seed)]
        values.append(metrics.self_bleu_sacre(texts))
        assert values[-1] == sacre_self_bleu(texts), (seed, texts)
    assert len(set(values)) > 150


def test_bleu_sacre_is_sacrebleu_to_the_last_bit():
    values = []
    for seed in range(300):
        texts, references = ([" ".join(text) for text in random_texts(s)] for s in (seed, seed + 1000))
        values.append(metrics.bleu_sacre(texts, references))
        assert values[-1] == mean([sacrebleu.sentence_bleu(text, references).score for text in texts]), (
            seed,
            texts,
            references,
        )
    assert len(set(values)) > 100


def test_self_bleu_sacre_tokenizes_as_sacrebleu():
    texts = [
        "The price, 1,000.50 dollars, rose.\n",
        "  a well-\nknown &quot;price&quot; of 1,000 -- (so-called)",
        "<unk> = Price = @-@ 3-4 <skipped>.",
        "tabs\tand\u00a0spaces \u2028 of unicode, naïve",
        "trailing dots...   ",
        "cut at a line end-\n",
        "a line end cut",
        "   ",
    ]
    assert metrics.self_bleu_sacre(texts) == sacre_self_bleu(texts)


def test_13a_tokens_are_sacrebleus():
    """Anything can stand beside anything: what becomes of a word must not depend on its neighbours."""
    parts = [
        *"ab7.,-&;'!/~\n\t \r\x1c\x85\u00a0\u2028é٣",
        "-\n",
        "<skipped>",
        "<skip",
        "ped>",
        "&quot;",
        "&amp;",
        "lt;",
        "&gt;",
        "a.",
        ", ",
        "3.5",
        " " * 3,
    ]
    rng = random.Random(0)
    for _ in range(300):
        texts = ["".join(rng.choices(parts, k=rng.randint(0, 60))) for _ in range(rng.randint(1, 5))]
        expected = metrics._encode([Tokenizer13a()(text.rstrip()).split() for text in texts])
        for got, want in zip(metrics._encode_13a(texts), expected):
            np.testing.assert_array_equal(got, want, str(texts))


@pytest.mark.parametrize(
    "texts",
    [
        [["a"], ["b"]],  # nothing in common
        [["a"], []],  # an empty text, as a text and as the closest length
        [["a"], ["a"]],  # too short for the higher orders
        [list("aaaa"), list("aa"), list("a")],  # one owner, the second largest count matters
        [list("aab"), list("aac"), list("a")],  # two owners
        [
            list("abcde"),
            list("abc"),
            list("abcdefg"),
        ],  # 3 and 7 are equally close to 5: the shorter, no penalty
        [list("abcdefg"), list("abc"), list("abc")],  # a copy is as close as can be
    ],
)
def test_self_bleu_edge_cases(texts):
    for max_n in (1, 2, 4, 6):
        assert metrics.self_bleu(texts, max_n) == nltk_self_bleu(texts, max_n)
    strings = [" ".join(text) for text in texts]
    assert metrics.self_bleu_sacre(strings) == sacre_self_bleu(strings)


def test_self_bleu_known_values():
    words = "the cat sat on the mat".split()
    assert metrics.self_bleu([words] * 3) == 1.0
    assert metrics.self_bleu_sacre([" ".join(words)] * 3) == pytest.approx(
        100, abs=1e-9
    )  # exp(log 100) is not quite 100
    assert metrics.self_bleu([list("abcd"), list("efgh")]) == 0.0
    # 1-grams: "a a b" keeps 1 of its two a, and no b; "a c c" keeps its a. 1/3 each, lengths equal.
    assert metrics.self_bleu([list("aab"), list("acc")], max_n=1) == pytest.approx(1 / 3)
    # "a" is shorter than "a b c": penalty exp(1 - 3) on precision 1; the other has precision 1/3 and none.
    assert metrics.self_bleu([list("a"), list("abc")], max_n=1) == pytest.approx((math.exp(-2) + 1 / 3) / 2)


@pytest.mark.parametrize("seed", range(20))
def test_self_bleu_does_not_depend_on_the_order_of_the_texts(seed):
    texts = random_texts(seed)
    shuffled = random.Random(seed).sample(texts, len(texts))
    assert metrics.self_bleu(texts) == metrics.self_bleu(shuffled)
    assert metrics.self_bleu_sacre([" ".join(t) for t in texts]) == metrics.self_bleu_sacre(
        [" ".join(t) for t in shuffled]
    )


def test_self_bleu_takes_any_token():
    """Ids in a list, an array, a tensor; tuples: only equality of tokens matters."""
    texts = [[0, 1, 0, 2, 0, 1], [0, 1, 0, 2, 3], [4, 0, 1, 0]]
    expected = nltk_self_bleu(texts, 4)
    assert 0 < expected < 1
    for kind in (
        tuple,
        np.array,
        torch.tensor,
        lambda text: [f"w{t}" for t in text],
        lambda text: [(t, None) for t in text],
    ):
        assert metrics.self_bleu([kind(text) for text in texts]) == expected
    square = [text[:4] for text in texts]
    assert (
        metrics.self_bleu(torch.tensor(square))
        == metrics.self_bleu(np.array(square))
        == nltk_self_bleu(square, 4)
    )


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: metrics.self_bleu([]), "0 text.*at least 2"),
        (lambda: metrics.self_bleu([["a", "b"]]), "1 text.*at least 2"),
        (lambda: metrics.self_bleu([[], []]), "2 texts, all of them empty"),
        (lambda: metrics.self_bleu([["a"], "a b"]), "text 1 is the string 'a b'.*split"),
        (lambda: metrics.self_bleu([["a"], ["a"]], max_n=0), "order 0.*at least 1"),
        (lambda: metrics.self_bleu_sacre(["a b"]), "1 text.*at least 2"),
        (lambda: metrics.self_bleu_sacre("a b"), "string 'a b'.*list"),
        (lambda: metrics.self_bleu_sacre(["", " \n"]), "all of them empty"),
        (lambda: metrics.self_bleu_sacre(["a b", ["a", "b"]]), "text 1 is a list.*raw string"),
        (lambda: metrics.bleu_sacre(["a b"], []), "0 references"),
        (lambda: metrics.bleu_sacre([], ["a b"]), "0 text.*at least one"),
        (lambda: metrics.bleu_sacre(["", ""], ["a b"]), "2 texts, all of them empty"),
        (lambda: metrics.bleu_sacre(["a b"], "a b"), "string 'a b'.*list"),
    ],
)
def test_self_bleu_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ---- repetition and vocabulary -------------------------------------------------------------------


def test_distinct_n_by_hand():
    assert metrics.distinct_n([list("abab")], n=1) == 2 / 4
    assert metrics.distinct_n([list("abab")], n=2) == 2 / 4  # ab, ba, ab over 4 tokens
    assert (
        metrics.distinct_n([list("ab"), list("cd")], n=2) == 2 / 4
    )  # bc crosses the texts and does not count
    assert metrics.distinct_n([list("abcde"), list("abcdf"), []]) == 3 / 10  # abcd is shared
    assert metrics.distinct_n([list("abc")]) == 0  # no 4-gram
    assert metrics.distinct_n([range(1000)]) == 997 / 1000


def test_seq_rep_n_by_hand():
    assert metrics.seq_rep_n([list("abcdefg")]) == 0
    assert metrics.seq_rep_n([list("aaaaaaaa")]) == pytest.approx(1 - 1 / 5)
    assert metrics.seq_rep_n([list("abab")], n=2) == pytest.approx(1 / 3)
    # Each text counts by itself: what two share is no repetition. The short and the empty one are left out.
    assert metrics.seq_rep_n(
        [list("aaaaaaaa"), list("abcde"), list("abcde"), list("abc"), []]
    ) == pytest.approx((4 / 5) / 3)


@pytest.mark.parametrize("seed", range(50))
def test_distinct_and_seq_rep_are_their_definitions(seed):
    texts, n = [*random_texts(seed), ["x", "y", "x", "y", "x", "y"]], 1 + seed % 5
    grams = [[tuple(text[i : i + n]) for i in range(len(text) - n + 1)] for text in texts]
    assert metrics.distinct_n(texts, n) == len(set().union(*grams)) / sum(map(len, texts))
    assert metrics.seq_rep_n(texts, n) == pytest.approx(
        mean([1 - len(set(g)) / len(g) for g in grams if g]), abs=1e-15
    )


def test_zipf_coefficient():
    exact = [
        [i for i in range(1, 13) for _ in range(27720 // i)]
    ]  # 27720 = lcm(1..12): frequency exactly ~ 1/rank
    assert metrics.zipf_coefficient(exact) == pytest.approx(1, abs=1e-12)
    assert metrics.zipf_coefficient([["a"], ["b", "c"]]) == pytest.approx(0, abs=1e-12)
    assert metrics.zipf_coefficient([list("aa"), list("ab"), list("a")]) == pytest.approx(
        2
    )  # 4 and 1: log 4 / log 2


def test_zipf_coefficient_is_a_line_over_at_most_5000_ranks():
    tokens = np.random.default_rng(0).zipf(1.2, 40_000)
    frequency = np.sort(np.unique(tokens, return_counts=True)[1])[::-1]
    assert len(frequency) > 5000
    expected = -np.polynomial.polynomial.polyfit(np.log(np.arange(1, 5001)), np.log(frequency[:5000]), 1)[1]
    assert metrics.zipf_coefficient(tokens.reshape(100, 400)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: metrics.distinct_n([[], []]), "distinct-4 of 2 .*at least one token"),
        (lambda: metrics.distinct_n(["a b"]), "text 0 is the string"),
        (lambda: metrics.distinct_n([["a"]], n=0), "order 0"),
        (lambda: metrics.seq_rep_n([list("abc"), []]), "longest of 3 tokens.*at least 4"),
        (lambda: metrics.seq_rep_n([]), "0 text"),
        (lambda: metrics.zipf_coefficient([["a", "a"]]), "1 different word"),
        (lambda: metrics.zipf_coefficient([]), "0 different word"),
    ],
)
def test_text_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ---- probabilities -------------------------------------------------------------------------------


def test_ece_by_hand():
    # Bins of width 1/2. (0, .5] has .5 and .25: accuracy 1/2, confidence .375.
    # (.5, 1] has .75 and 1: accuracy 1/2, confidence .875.
    assert metrics.ece([0.5, 0.25, 0.75, 1.0], [1, 0, 0, 1], bins=2) == pytest.approx(
        0.5 * 0.125 + 0.5 * 0.375
    )
    assert metrics.ece([1.0, 1.0, 0.0], [True, True, False]) == 0
    assert metrics.ece([1.0], [0]) == 1
    assert metrics.ece([[0.9], [0.9]], [[1], [0]], bins=1) == pytest.approx(0.4)
    # Over and under within one bin cancel, across bins they do not.
    assert metrics.ece([0.45, 0.55], [0, 1], bins=1) == pytest.approx(0) and metrics.ece(
        [0.45, 0.55], [0, 1], bins=2
    ) == pytest.approx(0.45)


def test_ece_bins_are_open_below_and_closed_above():
    edges = np.linspace(0, 1, 16)
    calibration = metrics.Calibration(15)
    calibration.add(edges, np.ones(16))
    assert calibration.count.tolist() == [2] + [1] * 14  # 0 and 1/15 in the first, then one edge in each
    calibration.add(np.nextafter(edges[:-1], 1), np.ones(15))
    assert calibration.count.tolist() == [3] + [2] * 14


def test_ece_is_the_loop_of_guo_et_al():
    rng = np.random.default_rng(1)
    p = rng.random(5000)
    correct = rng.random(5000) < p**2  # overconfident
    expected, edges = 0.0, np.linspace(0, 1, 16)
    for low, high in itertools.pairwise(edges):
        inside = (p > low) & (p <= high)
        if inside.any():
            expected += inside.mean() * abs(correct[inside].mean() - p[inside].mean())
    assert expected > 0.1
    assert metrics.ece(p, correct) == pytest.approx(expected, rel=1e-12)
    assert metrics.ece(torch.tensor(p), torch.tensor(correct)) == metrics.ece(p, correct)


def test_calibration_in_chunks_equals_whole():
    rng = np.random.default_rng(2)
    p, correct = rng.random(1000).astype(np.float32), rng.random(1000) < 0.5
    calibration = metrics.Calibration(10)
    for chunk in np.split(np.arange(1000), [0, 1, 300, 301, 777]):  # one of them empty
        calibration.add(p[chunk], correct[chunk])
    assert calibration.count.sum() == 1000
    assert calibration.ece() == pytest.approx(metrics.ece(p, correct, bins=10), rel=1e-12)


def test_ece_accepts_float32_rounding_above_one():
    assert metrics.ece([1 + 1e-7], [1]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: metrics.ece([0.5, 1.5], [1, 1]), "confidence 1.5 .*probabilities"),
        (lambda: metrics.ece([-0.1], [1]), "confidence -0.1"),
        (lambda: metrics.ece([math.nan], [1]), "confidence nan"),
        (lambda: metrics.ece([0.5], [2]), "correct holds 2"),
        (lambda: metrics.ece([0.5], [math.nan]), "correct holds nan"),
        (lambda: metrics.ece([0.5, 0.5], [1]), r"\(2,\) and correct \(1,\)"),
        (lambda: metrics.ece([0.5], [1], bins=0), "bins = 0"),
        (lambda: metrics.ece([], []), "0 predictions"),
        (lambda: metrics.Calibration().ece(), "0 predictions"),
        (lambda: metrics.perplexity(1.0, 0), "0 tokens"),
        (lambda: metrics.perplexity(math.nan, 3), "nan over 3"),
        (lambda: metrics.perplexity(-5.0, 3), "-5.0 over 3 .*-log p"),
        (lambda: metrics.bits_per_byte(1.0, 0), "0 bytes"),
        (lambda: metrics.bits_per_byte(-math.inf, 2), "-inf over 2 bytes"),
    ],
)
def test_probability_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_perplexity_and_bits_per_byte():
    assert metrics.perplexity(0.0, 7) == 1
    assert metrics.perplexity(10 * math.log(50257), 10) == pytest.approx(
        50257
    )  # the uniform distribution: the vocabulary
    assert metrics.perplexity(math.inf, 10) == math.inf
    assert metrics.perplexity(1e6, 1) == math.inf  # beyond the largest float, not an OverflowError
    assert metrics.perplexity(-1e-8, 1) == pytest.approx(1)  # rounding of a sure prediction
    assert metrics.bits_per_byte(100 * math.log(256), 100) == pytest.approx(8)
    assert metrics.bits_per_byte(math.inf, 10) == math.inf
