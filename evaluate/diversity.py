"""Diversity metrics: texts -> numbers.

Pure functions; nothing else of this project is imported.

A text is a sequence of hashable tokens: words, or token ids in a list, an array or a tensor. Only the
sacreBLEU metrics take strings.

Every diversity number depends on how many texts there are, how long they are and how they were tokenised.
Compare numbers only where these three are equal, and never score the prompt with its continuation.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from itertools import chain

import numpy as np
from sacrebleu import BLEU

ZIPF_RANKS = 5000  # the most frequent words that the line is fitted to, as in the code of Holtzman et al.

BLEU_ORDERS = 4  # n-grams of 1 to so many words


# ---- words ----

SPACED = "13a"  # sacreBLEU's tokenizer of languages that have spaces between words
# scripts without spaces: Han and bopomofo; kana, half-width ones too; Thai, Lao, Tibetan, Burmese and Khmer,
# Tai Le, New Tai Lue and Tai Tham, Balinese, Javanese, Tai Viet
HAN = re.compile("[\u3100-\u312f\u31a0-\u31bf\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
KANA = re.compile("[\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f]")
LETTERS = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f\ua980-\ua9ff\uaa60-\uaadf]"
)


def tokenizer_for(texts: Iterable[str]) -> str:
    """The tokenizer of sacreBLEU that finds the words of such texts: 13a for words with spaces between.

    If a tenth of the characters or more are Han or kana, it is zh, by which each Han character is a word and
    English is split as by 13a; if a tenth of these are kana, it is ja-mecab where that package is installed,
    else char. If most characters are of another script without spaces, it is char.
    """
    text = "".join(chain.from_iterable(map(str.split, texts)))
    han, kana, letters = (len(script.findall(text)) for script in (HAN, KANA, LETTERS))
    if 2 * letters > len(text):
        return "char"
    if not text or 10 * (han + kana) < len(text):
        return SPACED
    if 10 * kana < han + kana:
        return "zh"
    return "ja-mecab" if find_spec("MeCab") and find_spec("ipadic") else "char"


@cache
def _tokenizer(name: str) -> Callable[[str], str]:
    try:
        return BLEU(tokenize=name).tokenizer
    except RuntimeError as error:  # a package of its own is not installed
        raise ValueError(f"tokenize = {name!r}: {error}") from None


def words_in(text: str, tokenize: str = SPACED) -> list[str]:
    """The words that the metrics count: between spaces for 13a, else as sacreBLEU's tokenizer splits them."""
    return (text if tokenize == SPACED else _tokenizer(tokenize)(text)).split()


# ---- counting n-grams ----


def _encode(texts: Sequence[Sequence[Hashable]]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of all texts one after the other, as ids 0..V-1 (M,), and the length of each text (N,)."""
    # tolist, because the elements of a tensor hash by identity: no two of them would be the same token
    texts = [text.tolist() if hasattr(text, "tolist") else text for text in texts]
    ids: defaultdict[Hashable, int] = defaultdict()
    ids.default_factory = ids.__len__
    tokens = np.fromiter(map(ids.__getitem__, chain.from_iterable(texts)), np.int64)
    return tokens, np.fromiter(map(len, texts), np.int64)


def _ngram_counts(
    tokens: np.ndarray, lengths: np.ndarray, max_n: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For n = 1..max_n yields (gram, text, count): the n-grams of each text, sorted by gram, then by text.

    gram numbers the different n-grams of the pooled texts 0, 1, ...; text is the index of the text; count
    says how often the text has the n-gram. An n-gram does not cross texts.

    Each n takes one sort, because an n-gram is the pair (id of its first n-1 tokens, last token).
    """
    M, N, V = len(tokens), len(lengths), int(tokens.max(initial=-1)) + 1
    if M * N * V >= 2**63:
        raise ValueError(f"{N} texts of {M} tokens do not fit a 64-bit sort key: score a sample of them")
    owner = np.repeat(np.arange(N), lengths)  # (M,) the text of each position
    left = np.cumsum(lengths)[owner] - np.arange(M)  # (M,) tokens from a position to the end of its text
    gram = np.zeros(M, np.int64)  # (M,) id of the (n-1)-gram that starts at a position; there is one 0-gram
    for n in range(1, max_n + 1):
        at = np.flatnonzero(left >= n)
        key = (gram[at] * V + tokens[at + n - 1]) * N + owner[at]
        order = np.argsort(key)
        at, key = at[order], key[order]
        ids = np.cumsum(np.diff(key // N, prepend=-1) != 0) - 1
        gram[at] = ids
        first = np.flatnonzero(np.diff(key, prepend=-1))  # the first of each run of equal (gram, text)
        yield ids[first], owner[at[first]], np.diff(first, append=len(key))


# ---- self-BLEU ----


def _matches(gram: np.ndarray, text: np.ndarray, count: np.ndarray, N: int) -> np.ndarray:
    """BLEU's clipped matches of each text against all others (N,).

    That is the sum over the text's n-grams of min(count, largest count in another text). The largest count in
    another text is the largest count of all, but the second largest for a text that alone has the largest.
    """
    texts = np.bincount(gram)  # (G,) how many texts have each n-gram
    shared = np.repeat(texts > 1, texts)  # most n-grams are of a single text and match nothing
    text, count, texts = text[shared], count[shared], texts[texts > 1]
    first = np.cumsum(texts) - texts  # (G',) like the next three, for each n-gram of several texts
    largest = np.maximum.reduceat(count, first)
    elsewhere = np.repeat(largest, texts)
    is_largest = count == elsewhere
    second = np.maximum.reduceat(np.where(is_largest, 0, count), first)
    has_one_owner = np.add.reduceat(is_largest, first, dtype=np.int64) == 1
    elsewhere = np.where(is_largest & np.repeat(has_one_owner, texts), np.repeat(second, texts), elsewhere)
    return np.bincount(text, np.minimum(count, elsewhere), minlength=N).astype(np.int64)


def _closest_lengths(lengths: np.ndarray) -> np.ndarray:
    """For each text the length of another text that is closest to its own (N,); of two equally close, the
    shorter."""
    order = np.argsort(lengths)
    length = lengths[order]
    far = 3 * length[-1] + 1  # farther from any length than any two lengths are from each other
    shorter, longer = np.append(-far, length[:-1]), np.append(length[1:], far)
    closest = np.empty_like(lengths)
    closest[order] = np.where(length - shorter <= longer - length, shorter, longer)
    return closest


def _mean_bleu(tokens: np.ndarray, lengths: np.ndarray) -> float:
    """Mean over the texts, given as `_encode` gives them, of brevity penalty * precision.

    A text is compared with all others; without a match it scores 0. With r the closest of their lengths, the
    brevity penalty of a text of c tokens is exp(1 - r / c) if c < r, else 1.
    """
    N = len(lengths)
    if N < 2 or not lengths.any():
        raise ValueError(f"self-BLEU of {N} texts: give at least 2, one of which is not empty")
    counts = _ngram_counts(tokens, lengths, BLEU_ORDERS)
    matches = np.stack([_matches(*of_order, N) for of_order in counts], axis=1)  # (N, 4)
    totals = np.maximum(lengths[:, None] - np.arange(BLEU_ORDERS), 0)  # (N, 4)
    of_texts = zip(matches.tolist(), totals.tolist(), lengths.tolist(), _closest_lengths(lengths).tolist())
    bleu = partial(BLEU.compute_bleu, smooth_method="exp", effective_order=True)
    return math.fsum(bleu(*of_text).score for of_text in of_texts) / N  # fsum: the same in any order


def self_bleu_sacre(texts: Sequence[str], tokenize: str = SPACED) -> float:
    """Self-BLEU (Zhu et al. 2018, Texygen, arXiv 1802.01886), the sacreBLEU variant (Post 2018, arXiv
    1804.08771): 0..100, higher is less diverse.

    The mean over the texts of sacrebleu.sentence_bleu(text, all other texts).score, with that tokenizer,
    orders 1 to 4, exponential smoothing and effective order, to the last bit what sacrebleu 2.6 gives. It
    takes one sort of all n-grams for each order instead of N^2 comparisons.
    The texts are raw strings: the tokenizer splits them.
    ValueError for fewer than 2 texts, and for texts that are all empty.
    """
    separated = _tokenizer(tokenize)
    return _mean_bleu(*_encode([separated(text.rstrip()).split() for text in texts]))


# ---- repetition and vocabulary ----


def distinct_n(texts: Sequence[Sequence[Hashable]], n: int = 4) -> float:
    """Distinct-n: different n-grams of the pooled texts / tokens of the pooled texts, 0..1.

    An n-gram does not cross texts. The divisor counts tokens, as in the paper, not n-grams, so N texts of T
    different tokens each reach 1 - (n-1)/T, not 1.
    ValueError for texts without a token and for n < 1.
    Source: Li et al. 2016, arXiv 1510.03055.
    """
    tokens, lengths = _encode(texts)
    if not len(tokens):
        raise ValueError(f"distinct-{n} of {len(texts)} texts without a token")
    *_, (gram, _, _) = _ngram_counts(tokens, lengths, n)
    return float((gram.max(initial=-1) + 1) / len(tokens))


def seq_rep_n(texts: Sequence[Sequence[Hashable]], n: int = 4) -> float:
    """Seq-rep-n: mean over texts of 1 - different n-grams / n-grams, from 0 (no repetition) to 1.

    Texts of fewer than n tokens have no n-gram and are left out of the mean.
    ValueError where no text is left, and for n < 1.
    Source: Welleck et al. 2020, arXiv 1908.04319.
    """
    tokens, lengths = _encode(texts)
    *_, (_, text, _) = _ngram_counts(tokens, lengths, n)
    different, total = np.bincount(text, minlength=len(lengths)), lengths - n + 1
    scored = total > 0
    if not scored.any():
        raise ValueError(f"seq-rep-{n} of {len(texts)} texts of fewer than {n} tokens")
    return float(np.mean(1 - different[scored] / total[scored]))


def zipf_coefficient(texts: Sequence[Sequence[Hashable]]) -> float:
    """Zipf coefficient s in frequency ~ rank^-s: about 1 for human text, 0 for uniform words.

    Minus the slope of the least-squares line of log frequency against log rank, over the pooled words, for
    the ranks 1..min(5000, words). Each rank weighs the same, so the many rare words dominate the fit.
    ValueError for fewer than 2 different words.
    Source: Holtzman et al. 2020, arXiv 1904.09751.
    """
    tokens, _ = _encode(texts)
    frequency = np.sort(np.bincount(tokens))[::-1][:ZIPF_RANKS]
    if len(frequency) < 2:
        raise ValueError(f"Zipf coefficient of {len(frequency)} different words: a line needs 2")
    x, y = np.log(np.arange(1, len(frequency) + 1)), np.log(frequency)
    x -= x.mean()
    return float(-(x @ (y - y.mean())) / (x @ x))


# ---- of the texts of a table ----


def _of_words(metric: Callable[[list[list[str]]], float]) -> Callable[..., float]:
    """A metric of lists of words -> the same of decoded texts."""
    return lambda texts, tokenize=SPACED: metric([words_in(t, tokenize) for t in texts])


# what a table says of texts: the key of the column -> the metric of (decoded texts, tokenizer)
TEXT_METRICS: dict[str, Callable[..., float]] = {
    "self_bleu": self_bleu_sacre,
    "distinct_4": _of_words(distinct_n),
    "seq_rep_4": _of_words(seq_rep_n),
    "zipf": _of_words(zipf_coefficient),
}


def common_words(human: list[str], tokenize: str = SPACED) -> int:
    """How many words 95% of the human texts have: what all texts are cut to."""
    return int(np.quantile([len(words_in(t, tokenize)) for t in human], 0.05))


def cut(text: str, words: int, tokenize: str = SPACED) -> str:
    """The text up to the end of its first `words` words; all of it if it has fewer, or if `words` is 0."""
    found = words_in(text, tokenize)[:words]
    if not words or len(found) < words:
        return text
    characters = sum(map(len, found))  # a tokenizer puts spaces between them, and changes none
    end = re.match(rf"(?:\s*\S){{{characters}}}", text)
    return end[0] if end else text


def text_metrics(
    texts: list[str],
    words: int = 0,
    tokenize: str = SPACED,
    metrics: Mapping[str, Callable[..., float]] = TEXT_METRICS,
) -> dict[str, float]:
    """The metrics of decoded texts, whose words `tokenize` finds.

    Each text is cut to its first `words`; "short_texts" says how many have fewer. 0: no text is cut.
    """
    short = {"short_texts": sum(len(words_in(t, tokenize)) < words for t in texts)} if words else {}
    texts = [cut(t, words, tokenize) for t in texts]
    return {key: float(metric(texts, tokenize=tokenize)) for key, metric in metrics.items()} | short
