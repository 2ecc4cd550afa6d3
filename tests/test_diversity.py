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


def test_self_bleu_known_values():
    # exp(log 100) is not quite 100
    assert diversity.self_bleu_sacre(["the cat sat on the mat"] * 3) == pytest.approx(100, abs=1e-9)
    assert diversity.self_bleu_sacre(["a b c d", "e f g h"]) == 0.0
    # "a" is shorter than "a b c": penalty exp(1 - 3) on precision 1. The other has 1 of 3 words; it has 0 of
    # 2 and 0 of 1 longer n-grams, which count as 1/2 and 1/4.
    expected = (100 * math.exp(-2) + 100 * (1 / 3 * 1 / 4 * 1 / 4) ** (1 / 3)) / 2
    assert diversity.self_bleu_sacre(["a", "a b c"]) == pytest.approx(expected)


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
    "13a": [
        "In the morning the old man went down to the harbour and looked at the boats. The wind came from "
        "the north, and there was no one on the water. He sat down on the wall and waited for his brother.",
        "When the wind came from the north there was no one on the water, so the children went down to the "
        "harbour and looked at the nets. The old man told them a story about a ship.",
        "She went down to the market early in the morning and bought bread, cheese and a bag of apples. "
        "There was no one in the street but the old man who sold newspapers at the corner.",
        "The train to the city was late again, and the people on the platform looked at the clock. In the "
        "end the old man said that it would be faster to go on foot, and nobody laughed.",
        "My brother bought a house near the harbour last year. In the morning he sits at the window with a "
        "cup of coffee and looks at the boats, and in the evening he reads the newspaper.",
    ],
    "zh": [
        "早上，老人走到港口去看船。风从北边吹来，水面上一个人也没有。他坐在墙上等他的弟弟，一直等到中午。",
        "风从北边吹来的时候，水面上一个人也没有，孩子们就走到港口去看渔网。老人给他们讲了一个关于大船的故事。",
        "她早上很早就到市场去买面包、奶酪和一袋苹果。街上一个人也没有，只有那个老人在街角卖报纸。",
        "开往城里的火车又晚点了，站台上的人都在看时间。最后老人说，走路去会更快，可是一个人也没有笑。",
        "我弟弟去年在港口旁边买了一座房子。早上他坐在窗前喝咖啡，看港口的船；晚上他在家里看报纸。",
    ],
    "char": [
        "朝、老人は港まで歩いて行って、船を見ていました。風は北から吹いていて、海には誰もいませんでした。彼は壁に座って弟を待ちました。",
        "風が北から吹いているとき、海には誰もいませんでした。子供たちは港まで歩いて行って、網を見ていました。老人は船の話をしました。",
        "彼女は朝早く市場まで歩いて行って、パンとチーズとりんごを買いました。通りには誰もいませんでした。老人だけが新聞を売っていました。",
        "町へ行く電車はまた遅れていて、ホームの人たちは時計を見ていました。老人は歩いて行ったほうが早いと言いましたが、誰も笑いませんでした。",
        "弟は去年、港の近くに家を買いました。朝は窓のそばに座ってコーヒーを飲みながら船を見ています。夜は家で新聞を読んでいます。",
    ],
}  # fmt: skip


@pytest.mark.parametrize("language", HUMAN)
def test_a_loop_is_less_diverse_than_people_and_noise_more(language, monkeypatch):
    """In languages with and without spaces between words: chosen by the texts, without MeCab."""
    monkeypatch.setattr(diversity, "find_spec", lambda _: None)
    human, spaced = HUMAN[language], language == "13a"
    assert (tokenize := diversity.tokenizer_for(human)) == language
    between = " " if spaced else ""
    parts = [text.split() if spaced else list(text) for text in human]
    assert min(len(diversity.words_in(text, tokenize)) for text in human) >= 30
    loop = [between.join((part[:6] * 30)[: len(part)]) for part in parts]
    rng, pool = random.Random(1), [word for part in parts for word in part]
    noise = [between.join(rng.choices(pool, k=len(part))) for part in parts]
    for key, least, most in (
        ("self_bleu", noise, human),
        ("distinct_4", human, noise),
        ("distinct_4", loop, human),
    ):
        metric = diversity.TEXT_METRICS[key]
        assert metric(least, tokenize) < metric(most, tokenize), key
    repetition = diversity.TEXT_METRICS["seq_rep_4"]
    assert repetition(loop, tokenize) > 0.7 > 0.1 > repetition(human, tokenize) >= repetition(noise, tokenize)


@pytest.mark.parametrize("tokenize", ["13a", "zh", "char"])
def test_texts_are_cut_behind_a_word_of_the_tokenizer(tokenize):
    text = "  早上，老人 walked 3.5 km to the 港口\n去看船。"
    words = [cut(text, n, tokenize) for n in (0, 1, 2, 5, 99)]
    assert words[0] == words[-1] == text and all(text.startswith(part) for part in words)
    known = {"13a": "早上，老人", "zh": "早", "char": "早"}
    assert words[1] == "  " + known[tokenize]
    assert diversity.words_in(words[3], tokenize) == diversity.words_in(text, tokenize)[:5]
