"""diversity.py against sacrebleu and numpy, to the last bit where it claims so, and worked examples."""

import gzip
import math
import random
from collections import Counter

import numpy as np
import pytest
import sacrebleu
import torch
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from scipy.stats import entropy

from evaluation import diversity


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def others(texts: list, i: int) -> list:
    return texts[:i] + texts[i + 1 :]


def sacre_self_bleu(texts: list[str]) -> float:
    return mean([sacrebleu.sentence_bleu(text, others(texts, i)).score for i, text in enumerate(texts)])


def random_texts(seed: int) -> list[list[str]]:
    """2 to 8 texts of 0 to 25 words out of 1 to 30.

    There are few words, so that they repeat; unequal lengths, for the brevity penalty; and some copies.
    """
    rng = random.Random(seed)
    vocabulary = [f"w{i}" for i in range(rng.choice([1, 2, 3, 5, 10, 30]))]
    longest = rng.choice([1, 3, 5, 10, 25])
    texts = [rng.choices(vocabulary, k=rng.randint(0, longest)) for _ in range(rng.randint(2, 8))]
    if rng.random() < 0.2:
        texts.append(list(texts[0]))
    return texts if any(texts) else [*texts, ["w0"]]


# ---- self-BLEU -----------------------------------------------------------------------------------


def test_self_bleu_sacre_is_sacrebleu_to_the_last_bit():
    values = []
    for seed in range(150):
        texts = [" ".join(text) for text in random_texts(seed)]
        values.append(diversity.self_bleu_sacre(texts))
        assert values[-1] == sacre_self_bleu(texts), (seed, texts)
    assert len(set(values)) > 75


def test_bleu_sacre_is_sacrebleu_to_the_last_bit():
    values = []
    for seed in range(150):
        texts, references = ([" ".join(text) for text in random_texts(s)] for s in (seed, seed + 1000))
        values.append(diversity.bleu_sacre(texts, references))
        want = mean([sacrebleu.sentence_bleu(text, references).score for text in texts])
        assert values[-1] == want, (seed, texts, references)
    assert len(set(values)) > 50


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
    assert diversity.self_bleu_sacre(texts) == sacre_self_bleu(texts)


def test_13a_tokens_are_sacrebleus():
    """Anything can stand beside anything: what becomes of a word must not depend on its neighbours."""
    parts = [
        *"ab7.,-&;'!/~\n\t \r\x1c\x85\u00a0\u2028é٣",
        *("-\n", "<skipped>", "<skip", "ped>", "&quot;", "&amp;", "lt;", "&gt;", "a.", ", ", "3.5", " " * 3),
    ]
    rng = random.Random(0)
    for _ in range(300):
        texts = ["".join(rng.choices(parts, k=rng.randint(0, 60))) for _ in range(rng.randint(1, 5))]
        expected = diversity._encode([Tokenizer13a()(text.rstrip()).split() for text in texts])
        for got, want in zip(diversity._encode_13a(texts), expected):
            np.testing.assert_array_equal(got, want, str(texts))


@pytest.mark.parametrize(
    "texts",
    [
        [["a"], ["b"]],  # nothing in common
        [["a"], []],  # an empty text, as a text and as the closest length
        [["a"], ["a"]],  # too short for the higher orders
        [list("aaaa"), list("aa"), list("a")],  # one owner, the second largest count matters
        [list("aab"), list("aac"), list("a")],  # two owners
        # 3 and 7 are equally close to 5: the shorter, no penalty
        [list("abcde"), list("abc"), list("abcdefg")],
        [list("abcdefg"), list("abc"), list("abc")],  # a copy is as close as can be
    ],
)
def test_self_bleu_edge_cases(texts):
    strings = [" ".join(text) for text in texts]
    assert diversity.self_bleu_sacre(strings) == sacre_self_bleu(strings)


def test_self_bleu_known_values():
    # exp(log 100) is not quite 100
    assert diversity.self_bleu_sacre(["the cat sat on the mat"] * 3) == pytest.approx(100, abs=1e-9)
    assert diversity.self_bleu_sacre(["a b c d", "e f g h"]) == 0.0
    # "a" is shorter than "a b c": penalty exp(1 - 3) on precision 1. The other has 1 of 3 words; it has 0 of
    # 2 and 0 of 1 longer n-grams, which count as 1/2 and 1/4.
    expected = (100 * math.exp(-2) + 100 * (1 / 3 * 1 / 4 * 1 / 4) ** (1 / 3)) / 2
    assert diversity.self_bleu_sacre(["a", "a b c"]) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_self_bleu_does_not_depend_on_the_order_of_the_texts(seed):
    texts = [" ".join(t) for t in random_texts(seed)]
    shuffled = random.Random(seed).sample(texts, len(texts))
    assert diversity.self_bleu_sacre(texts) == diversity.self_bleu_sacre(shuffled)


@pytest.mark.parametrize("metric", [diversity.distinct_n, diversity.seq_rep_n, diversity.self_repetition])
def test_any_token_is_taken(metric):
    """Ids in a list, an array, a tensor; tuples: only equality of tokens matters."""
    texts = [[0, 1, 0, 2, 0, 1], [0, 1, 0, 2, 3], [4, 0, 1, 0]]
    expected = metric(texts, 2)
    assert 0 < expected < 2
    for kind in (tuple, np.array, torch.tensor, lambda text: [(f"w{t}", None) for t in text]):
        assert metric([kind(text) for text in texts], 2) == expected
    square = [text[:4] for text in texts]
    assert metric(torch.tensor(square), 2) == metric(np.array(square), 2) == metric(square, 2)


# ---- repetition and vocabulary -------------------------------------------------------------------


def test_distinct_n_by_hand():
    assert diversity.distinct_n([list("abab")], n=1) == 2 / 4
    assert diversity.distinct_n([list("abab")], n=2) == 2 / 4  # ab, ba, ab over 4 tokens
    assert diversity.distinct_n([list("ab"), list("cd")], n=2) == 2 / 4  # bc crosses the texts
    assert diversity.distinct_n([list("abcde"), list("abcdf"), []]) == 3 / 10  # abcd is shared
    assert diversity.distinct_n([list("abc")]) == 0  # no 4-gram
    assert diversity.distinct_n([range(1000)]) == 997 / 1000


def test_seq_rep_n_by_hand():
    assert diversity.seq_rep_n([list("abcdefg")]) == 0
    assert diversity.seq_rep_n([list("aaaaaaaa")]) == pytest.approx(1 - 1 / 5)
    assert diversity.seq_rep_n([list("abab")], n=2) == pytest.approx(1 / 3)
    # Each text counts by itself: what two share is no repetition. The short and the empty one are left out.
    texts = [list("aaaaaaaa"), list("abcde"), list("abcde"), list("abc"), []]
    assert diversity.seq_rep_n(texts) == pytest.approx((4 / 5) / 3)


@pytest.mark.parametrize("seed", range(50))
def test_distinct_and_seq_rep_are_their_definitions(seed):
    texts, n = [*random_texts(seed), ["x", "y", "x", "y", "x", "y"]], 1 + seed % 5
    grams = [[tuple(text[i : i + n]) for i in range(len(text) - n + 1)] for text in texts]
    assert diversity.distinct_n(texts, n) == len(set().union(*grams)) / sum(map(len, texts))
    expected = mean([1 - len(set(g)) / len(g) for g in grams if g])
    assert diversity.seq_rep_n(texts, n) == pytest.approx(expected, abs=1e-15)


def test_zipf_coefficient():
    exact = [[i for i in range(1, 13) for _ in range(27720 // i)]]  # 27720 = lcm(1..12): exactly ~ 1/rank
    assert diversity.zipf_coefficient(exact) == pytest.approx(1, abs=1e-12)
    assert diversity.zipf_coefficient([["a"], ["b", "c"]]) == pytest.approx(0, abs=1e-12)
    # 4 and 1: log 4 / log 2
    assert diversity.zipf_coefficient([list("aa"), list("ab"), list("a")]) == pytest.approx(2)


def test_zipf_coefficient_is_a_line_over_at_most_5000_ranks():
    tokens = np.random.default_rng(0).zipf(1.2, 40_000)
    frequency = np.sort(np.unique(tokens, return_counts=True)[1])[::-1]
    assert len(frequency) > 5000
    expected = -np.polynomial.polynomial.polyfit(np.log(np.arange(1, 5001)), np.log(frequency[:5000]), 1)[1]
    assert diversity.zipf_coefficient(tokens.reshape(100, 400)) == pytest.approx(expected, rel=1e-10)


def test_unigram_entropy_by_hand():
    # a text of 8: one word 4 times, one 2 times, two once: 1/2 * 1 + 1/4 * 2 + 2/8 * 3 = 1.75 bits
    assert diversity.unigram_entropy([list("aaaabbcd")]) == pytest.approx(1.75)
    assert diversity.unigram_entropy([list("aaaa")]) == 0
    # a mean over texts, not of the pooled words; the empty text is left out
    assert diversity.unigram_entropy([list("abcd"), list("aa"), []]) == pytest.approx((2 + 0) / 2)


@pytest.mark.parametrize("seed", range(20))
def test_unigram_entropy_is_scipys(seed):
    texts = random_texts(seed)
    expected = mean([entropy(list(Counter(text).values()), base=2) for text in texts if text])
    assert diversity.unigram_entropy(texts) == pytest.approx(expected, abs=1e-12)


def test_self_repetition_by_hand():
    # "b c" stands in three texts, "a b" in two: the first text's bigrams stand 1 + 2 times in others, the
    # second's 1 + 2, the third's 2, and twice in one text counts once; the last shares none.
    texts = [list("abc"), list("abcbc"), list("bc"), list("xy")]
    expected = (math.log(4) + math.log(4) + math.log(3) + math.log(1)) / 4
    assert diversity.self_repetition(texts, n=2) == pytest.approx(expected)
    assert diversity.self_repetition([list("abcd"), list("efgh"), []]) == 0


@pytest.mark.parametrize("seed", range(50))
def test_self_repetition_is_its_definition(seed):
    texts, n = random_texts(seed), 1 + seed % 4
    grams = [{tuple(text[i : i + n]) for i in range(len(text) - n + 1)} for text in texts]
    shared = [sum(gram in other for gram in own for other in others(grams, i)) for i, own in enumerate(grams)]
    assert diversity.self_repetition(texts, n) == pytest.approx(mean([math.log(1 + k) for k in shared]))


def test_compression_ratio_is_that_of_a_gzip_file(tmp_path):
    """Bytes, not characters, and the file's header counts."""
    texts = ["naïve \u2013 words and words, ", "words and more words"] * 20
    path, joined = tmp_path / "texts.gz", " ".join(texts).encode()
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw) as file:
        file.write(joined)
    assert len(joined) > len(" ".join(texts))
    assert diversity.compression_ratio(texts) == len(joined) / path.stat().st_size


def test_compression_ratio_orders_texts():
    rng = random.Random(0)
    words = [f"w{rng.randrange(300)}" for _ in range(3000)]
    texts = [" ".join(words[i : i + 30]) for i in range(0, 3000, 30)]
    looped = [" ".join(words[i : i + 3] * 10) for i in range(0, 3000, 30)]
    noise = ["".join(chr(rng.randrange(33, 127)) for _ in range(100)) for _ in range(100)]
    ratios = [diversity.compression_ratio(t) for t in (noise, texts, looped, texts[:1] * 100)]
    assert ratios == sorted(ratios) and ratios[0] < 1.3 and ratios[-1] > 50


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: diversity.distinct_n([["a"], "a b"]), "text 1 is the string 'a b'.*split"),
        (lambda: diversity.distinct_n([["a"], ["a"]], n=0), "order 0.*at least 1"),
        (lambda: diversity.self_bleu_sacre([]), "0 text.*at least 2"),
        (lambda: diversity.self_bleu_sacre(["a b"]), "1 text.*at least 2"),
        (lambda: diversity.self_bleu_sacre("a b"), "string 'a b'.*list"),
        (lambda: diversity.self_bleu_sacre(["", " \n"]), "all of them empty"),
        (lambda: diversity.self_bleu_sacre(["a b", ["a", "b"]]), "text 1 is a list.*raw string"),
        (lambda: diversity.bleu_sacre(["a b"], []), "0 references"),
        (lambda: diversity.bleu_sacre([], ["a b"]), "0 text.*at least one"),
        (lambda: diversity.bleu_sacre(["", ""], ["a b"]), "2 texts, all of them empty"),
        (lambda: diversity.bleu_sacre(["a b"], "a b"), "string 'a b'.*list"),
        (lambda: diversity.distinct_n([[], []]), "distinct-4 of 2 .*at least one token"),
        (lambda: diversity.seq_rep_n([list("abc"), []]), "longest of 3 tokens.*at least 4"),
        (lambda: diversity.seq_rep_n([]), "0 text"),
        (lambda: diversity.zipf_coefficient([["a", "a"]]), "1 different word"),
        (lambda: diversity.zipf_coefficient([]), "0 different word"),
        (lambda: diversity.unigram_entropy([[], []]), "entropy of 2 .*at least one token"),
        (lambda: diversity.self_repetition([["a"]]), "1 text.*at least 2"),
        (lambda: diversity.compression_ratio([["a"]]), "text 0 is a list.*raw string"),
        (lambda: diversity.compression_ratio([]), "nothing"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
