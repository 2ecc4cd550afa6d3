"""diversity.py against sacrebleu and numpy, to the last bit where it claims so, and worked examples."""

import math
import random

import numpy as np
import pytest
import sacrebleu

from evaluate import diversity
from evaluate.diversity import cut


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def sacre_self_bleu(texts: list[str], tokenize: str = "13a") -> float:
    score = lambda i: sacrebleu.sentence_bleu(texts[i], texts[:i] + texts[i + 1 :], tokenize=tokenize).score
    return mean([score(i) for i in range(len(texts))])


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


@pytest.mark.parametrize("tokenize", ["13a", "zh", "char"])
def test_self_bleu_sacre_tokenizes_as_sacrebleu(tokenize):
    texts = [
        "The price, 1,000.50 dollars, rose.\n",
        "  a well-\nknown &quot;price&quot; of 1,000 -- (so-called)",
        "<unk> = Price = @-@ 3-4 <skipped>.",
        "tabs\tand\u00a0spaces \u2028 of unicode, naïve",
        "trailing dots...   ",
        "cut at a line end-\n",
        "a line end cut",
        "   ",
        *(*HUMAN["zh"], *HUMAN["char"], "GPT-2 有 1.5 亿个参数。", ""),
    ]
    assert diversity.self_bleu_sacre(texts, tokenize) == sacre_self_bleu(texts, tokenize)


# ---- repetition and vocabulary -------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(50))
def test_distinct_and_seq_rep_are_their_definitions(seed):
    texts, n = [*random_texts(seed), ["x", "y", "x", "y", "x", "y"]], 1 + seed % 5
    grams = [[tuple(text[i : i + n]) for i in range(len(text) - n + 1)] for text in texts]
    assert diversity.distinct_n(texts, n) == len(set().union(*grams)) / sum(map(len, texts))
    expected = mean([1 - len(set(g)) / len(g) for g in grams if g])
    assert diversity.seq_rep_n(texts, n) == pytest.approx(expected, abs=1e-15)


def test_zipf_coefficient_is_a_line_over_at_most_5000_ranks():
    tokens = np.random.default_rng(0).zipf(1.2, 40_000)
    frequency = np.sort(np.unique(tokens, return_counts=True)[1])[::-1]
    assert len(frequency) > 5000
    expected = -np.polynomial.polynomial.polyfit(np.log(np.arange(1, 5001)), np.log(frequency[:5000]), 1)[1]
    assert diversity.zipf_coefficient(tokens.reshape(100, 400)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    "metric, texts",
    [
        *((diversity.self_bleu_sacre, texts) for texts in ([], ["a b"], ["", " \n"])),
        (diversity.distinct_n, [[], []]),
        *((diversity.seq_rep_n, texts) for texts in ([], [list("abc"), []])),
        *((diversity.zipf_coefficient, texts) for texts in ([], [["a", "a"]])),
    ],
)
def test_too_little_to_compare(metric, texts):
    with pytest.raises(ValueError):
        metric(texts)


# ---- languages -----------------------------------------------------------------------------------

HUMAN = {
    "13a": ["In the morning the old man went down to the harbour.", "There was no one on the water."],
    "zh": ["早上，老人走到港口去看船。风从北边吹来。", "街上一个人也没有，只有那个老人在街角卖报纸。"],
    "char": ["朝、老人は港まで歩いて行って、船を見ていました。", "通りには誰もいませんでした。"],
}


@pytest.mark.parametrize("language", HUMAN)
def test_words_are_found_with_and_without_spaces_between_them(language, monkeypatch):
    """The tokenizer is chosen by the texts, here without MeCab."""
    monkeypatch.setattr(diversity, "find_spec", lambda _: None)
    texts = HUMAN[language]
    tokenize = diversity.tokenizer_for(texts)
    words = [diversity.words_in(text, tokenize) for text in texts]
    assert tokenize == language and min(map(len, words)) >= 7
    for key, metric in (("distinct_4", diversity.distinct_n), ("seq_rep_4", diversity.seq_rep_n)):
        assert diversity.TEXT_METRICS[key](texts, tokenize) == metric(words)


def test_chinese_with_english_words_is_chinese():
    """The numbers are sacreBLEU's."""
    text = "我们用 Python 写的 transformer 模型在 {} 上训练了 {} steps，loss 下降到 {}。"
    texts = [text.format(*v) for v in (("GPU", 1000, 2.5), ("TPU", 2000, 2.4), ("CPU", 3000, 2.3))]
    tokenize = diversity.tokenizer_for(texts)
    assert tokenize == "zh" and [len(diversity.words_in(text, tokenize)) for text in texts] == [24] * 3
    assert diversity.self_bleu_sacre(texts, tokenize) == pytest.approx(68.14, abs=0.005)
    assert diversity.tokenizer_for(["The word 猫 is a cat, and so was the old one."]) == "13a"


# Javanese, Tai Tham, New Tai Lue, bopomofo, half-width kana
@pytest.mark.parametrize("text", ["ꦲꦤꦕꦫꦏ", "ᨠᨶ᩠ᨿ", "ᦎᦺᦑᦟᦹᧉ", "ㄅㄆㄇㄈ", "ｱｲｳｴｵ"])
def test_a_script_without_spaces_has_a_word_a_character(text, monkeypatch):
    monkeypatch.setattr(diversity, "find_spec", lambda _: None)
    assert diversity.words_in(text, diversity.tokenizer_for([text])) == list(text)


@pytest.mark.parametrize("tokenize", ["13a", "zh", "char"])
def test_texts_are_cut_behind_a_word_of_the_tokenizer(tokenize):
    text = "  早上，老人 walked 3.5 km to the 港口\n去看船。"
    words = [cut(text, n, tokenize) for n in (0, 1, 2, 5, 99)]
    assert words[0] == words[-1] == text and all(text.startswith(part) for part in words)
    known = {"13a": "早上，老人", "zh": "早", "char": "早"}
    assert words[1] == "  " + known[tokenize]
    assert diversity.words_in(words[3], tokenize) == diversity.words_in(text, tokenize)[:5]


def test_texts_are_cut_behind_a_word_and_not_within_spaces():
    cases = ("a b \n", 2, "a b"), ("a b\n", 3, "a b\n"), ("a\u2003b c", 2, "a\u2003b"), ("", 4, "")
    for text, words, first in ((" a\n b\tc ", 2, " a\n b"), *cases):
        assert cut(text, words) == first


def test_what_a_table_says_of_texts():
    """By the keys of its columns, of texts that are cut to their first words."""
    texts = [
        "the cat sat on the mat today",
        "a red cat sat on the mat",
        "it is it is it is it is",
        "no two so",
    ]
    got, words = diversity.text_metrics(texts, words=7), [text.split()[:7] for text in texts]
    assert got == {
        "self_bleu": pytest.approx(sacre_self_bleu([" ".join(w) for w in words])),
        "distinct_4": diversity.distinct_n(words, 4),
        "seq_rep_4": diversity.seq_rep_n(words, 4),
        "zipf": diversity.zipf_coefficient(words),
        "short_texts": 1,
    }
