"""diversity.py against sacrebleu and numpy, to the last bit where it claims so, and worked examples; and
eval_diversity.py --files: the metrics of texts in files."""

import csv
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

import eval_diversity
from common.errors import UserError
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


# ---- self-BLEU ----------------------------------------------------------------------------------


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


# ---- repetition and vocabulary ------------------------------------------------------------------


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


# ---- languages ----------------------------------------------------------------------------------

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
    texts = ["the cat sat on the mat today", "a red cat sat on the mat", "it is it is it is it", "no two so"]
    got, words = diversity.text_metrics(texts, words=7), [text.split()[:7] for text in texts]
    assert got == {
        "self_bleu": pytest.approx(sacre_self_bleu([" ".join(w) for w in words])),
        "distinct_4": diversity.distinct_n(words, 4),
        "seq_rep_4": diversity.seq_rep_n(words, 4),
        "zipf": diversity.zipf_coefficient(words),
        "short_texts": 1,
    }


# ---- eval_diversity.py --files -----------------------------------------------------------------------------


RNG = random.Random(0)
TEXTS = [" ".join(RNG.choices("a cat sat on the old mat by the sea .".split(), k=n)) for n in range(12, 20)]


def rows(tmp_path: Path, *argv: str) -> dict[str, dict[str, float]]:
    """The rows of OUT.csv, by name."""
    out = tmp_path / "out"
    assert eval_diversity.main(["--files", *argv, "--halves=5", f"--out={out}"]) == 0
    with open(f"{out}.csv", newline="") as file:
        return {row.pop("name"): {k: float(v) for k, v in row.items()} for row in csv.DictReader(file)}


def write(path: Path, texts: list[str], end: str = "\n") -> str:
    path.write_text("".join(text + end for text in texts))
    return str(path)


def test_numbers_are_those_of_sacrebleu_and_of_sets(tmp_path):
    got = rows(tmp_path, write(tmp_path / "a.txt", TEXTS), "--whole")["a"]
    others = lambda i: TEXTS[:i] + TEXTS[i + 1 :]
    scores = [sacrebleu.sentence_bleu(text, others(i)).score for i, text in enumerate(TEXTS)]
    assert got["self_bleu"] == pytest.approx(math.fsum(scores) / len(scores), rel=1e-12)
    words = [text.split() for text in TEXTS]
    for n in (1, 2, 4):
        grams = {tuple(w[i : i + n]) for w in words for i in range(len(w) - n + 1)}
        assert got[f"distinct_{n}"] == pytest.approx(len(grams) / sum(map(len, words)), rel=1e-12)
        assert got[f"distinct_{n}_ci"] > 0
    assert got["words"] == sum(map(len, words)) / len(words)


def test_a_text_is_a_line_a_document_or_a_row(tmp_path):
    files = [write(tmp_path / "lines.txt", TEXTS), "--reference", write(tmp_path / "h.txt", TEXTS[::-1])]
    files += [write(tmp_path / "strings.jsonl", list(map(json.dumps, TEXTS)))]
    files += [write(tmp_path / "rows.jsonl", [json.dumps({"text": text, "id": 1}) for text in TEXTS])]
    lines = rows(tmp_path, *files)
    assert lines["lines"] == lines["strings"] == lines["rows"] and "human" in lines
    wrapped = [text.replace(" sat", "\nsat") for text in TEXTS]
    documents = write(tmp_path / "wrapped.txt", wrapped, "\n \n\n")
    assert rows(tmp_path, documents, "--unit=document", "--whole")["wrapped"]["words"] == 15.5


def test_files_give_as_many_texts_of_as_many_words(tmp_path, capsys):
    small, large = write(tmp_path / "small.txt", TEXTS[:4]), write(tmp_path / "large.txt", TEXTS[4:] * 9)
    got = rows(tmp_path, small, large, "--words=14")
    assert "texts 4, words 14, tokenize 13a" in capsys.readouterr().out
    assert [got[name]["short_texts"] for name in got] == [2, 0]
    assert [got[name]["words"] for name in got] == [(12 + 13 + 14 + 14) / 4, 14]


@pytest.mark.parametrize(
    "name, content, flags",
    [
        ("empty.txt", "\n \n", []),
        ("one.txt", "a single text\n", []),
        ("few.txt", "a b c d\n" * 3, ["--texts=4"]),
        ("rows.jsonl", '{"body": "a b"}\n' * 4, []),
        ("numbers.jsonl", '{"text": 1}\n' * 4, []),
        ("broken.jsonl", '{"text": "a\n', []),
    ],
)
def test_a_file_that_cannot_be_measured_is_named(tmp_path, name, content, flags):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError, match=name):
        eval_diversity.main(["--files", str(path), *flags])
