"""Metrics: texts and log-probabilities -> numbers.

Pure functions on numpy arrays; nothing else of this project is imported.

A text is a sequence of hashable tokens: words, or token ids in a list, an array or a tensor. Only the
sacreBLEU metrics take strings, because they bring their own tokenizer.

Every diversity number depends on how many texts there are, how long they are and how they were tokenised.
Compare numbers only where these three are equal, and never score the prompt with its continuation.

All of the diversity metrics count n-grams with `_ngram_counts`.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Sized
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

T = TypeVar("T", bound=Hashable)

ZIPF_RANKS = 5000  # the most frequent words that the line is fitted to, as in the code of Holtzman et al.
# float32 rounding may carry a probability this far above 1, or a mean NLL this far below 0; more is a mistake
ROUNDING = 1e-6


# ---- counting n-grams ----


def _encode(texts: Sequence[Sequence[Hashable]]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of all texts one after the other, as ids 0..V-1 (M,), and the length of each text (N,)."""
    for i, text in enumerate(texts):
        if isinstance(text, (str, bytes)):
            raise ValueError(
                f"text {i} is the string {text[:40]!r}, which is a sequence of characters, not of words: "
                "pass text.split() for words, or list(text) if characters are meant"
            )
    # tolist, because the elements of a tensor hash by identity: no two of them would be the same token
    texts = [text.tolist() if hasattr(text, "tolist") else text for text in texts]
    tokens, _ = _number(chain.from_iterable(texts))
    return tokens, _lengths(texts)


def _number(tokens: Iterable[T]) -> tuple[np.ndarray, list[T]]:
    """Tokens as ids in order of their first appearance (M,), and the different tokens, by id."""
    ids: defaultdict[T, int] = defaultdict()
    ids.default_factory = ids.__len__
    return np.fromiter(map(ids.__getitem__, tokens), np.int64), list(ids)


def _lengths(texts: Iterable[Sized]) -> np.ndarray:
    return np.fromiter(map(len, texts), np.int64)


def _ngram_counts(
    tokens: np.ndarray, lengths: np.ndarray, max_n: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For n = 1..max_n yields (gram, text, count): the n-grams of each text, sorted by gram, then by text.

    gram numbers the different n-grams of the pooled texts 0, 1, ...; text is the index of the text; count
    says how often the text has the n-gram. An n-gram does not cross texts.

    Each n takes one sort, because an n-gram is the pair (id of its first n-1 tokens, last token).
    """
    M, N, V = len(tokens), len(lengths), int(tokens.max(initial=-1)) + 1
    if max_n < 1:
        raise ValueError(f"n-grams of order {max_n}: the order must be at least 1")
    if M * N * V >= 2**63:
        raise ValueError(
            f"{N} texts of {M} tokens, {V} of them different, do not fit a 64-bit sort key: "
            "score a sample of the texts"
        )
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


def _last_counts(
    tokens: np.ndarray, lengths: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`_ngram_counts` of the order n alone."""
    *_, last = _ngram_counts(tokens, lengths, n)
    return last


# ---- self-BLEU ----


def _encode_13a(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """`_encode` of the tokens that sacrebleu's 13a tokenizer gives.

    Each different word goes through the tokenizer's patterns only once. The patterns put spaces into words
    and treat all whitespace around a word alike. So they get all different words in one line. A piece that
    comes out belongs to the word in which it ends, counted in characters.
    """
    from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp  # here: no other function needs sacrebleu

    split = [_words_13a(text) for text in texts]
    word, different = _number(chain.from_iterable(split))
    tabbed = "\t".join(["", *different, ""])  # not spaces: it would replace each of them
    pieces = TokenizerRegexp()(tabbed).split()
    piece, _ = _number(pieces)
    ends_in = np.searchsorted(np.cumsum(_lengths(different)), np.cumsum(_lengths(pieces)))
    parts = np.bincount(ends_in, minlength=len(different))  # (V,) pieces of each different word
    first = np.cumsum(parts) - parts  # (V,) the first of them
    k = parts[word]  # (M,) pieces of each word
    within = np.arange(k.sum()) - np.repeat(np.cumsum(k) - k, k)
    text = np.repeat(np.arange(len(split)), _lengths(split))
    lengths = np.bincount(text, k, minlength=len(split)).astype(np.int64)
    return piece[np.repeat(first[word], k) + within], lengths


def _words_13a(text: str) -> list[str]:
    """Words of `text` after the replacements that the 13a tokenizer begins with. They can join words."""
    text = text.rstrip().replace("<skipped>", "").replace("-\n", "")
    if "&" in text:
        for old, new in (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")):
            text = text.replace(old, new)
    return text.split()


def _matches(gram: np.ndarray, text: np.ndarray, count: np.ndarray, N: int) -> np.ndarray:
    """BLEU's clipped matches of each text against all others (N,).

    That is the sum over the text's n-grams of min(count, largest count in another text). The largest count in
    another text is the largest count of all. For the one text that has that count, it is the second largest.
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


def _matches_in(gram: np.ndarray, text: np.ndarray, count: np.ndarray, N: int) -> np.ndarray:
    """BLEU's clipped matches of the first N texts against all later ones (N,)."""
    reference = text >= N
    largest = np.zeros(gram.max(initial=-1) + 1, np.int64)
    np.maximum.at(largest, gram[reference], count[reference])
    gram, text, count = gram[~reference], text[~reference], count[~reference]
    return np.bincount(text, np.minimum(count, largest[gram]), minlength=N).astype(np.int64)


def _closest_in(lengths: np.ndarray, references: np.ndarray) -> np.ndarray:
    """For each length the closest of the lengths `references`; of two equally close, the shorter."""
    references = np.sort(references)
    far = references[-1] + lengths.max() + 1
    at = np.searchsorted(references, lengths)
    shorter, longer = np.append(-far, references)[at], np.append(references, far + lengths.max())[at]
    return np.where(lengths - shorter <= longer - lengths, shorter, longer)


def _mean_bleu(
    tokens: np.ndarray,
    lengths: np.ndarray,
    max_n: int,
    score: Callable[[list[int], list[int]], float],
    references: int = 0,
) -> float:
    """Mean over the texts, given as `_encode` gives them, of brevity penalty * score(matches, totals).

    Matches and totals are lists for n = 1..max_n. A text without a match scores 0. A text is compared with
    all others or, if `references` is not 0, with the last `references` texts, which get no score themselves.
    With r the closest length among the texts it is compared with, the brevity penalty of a text of c tokens
    is exp(1 - r / c) if c < r, else 1.
    """
    N = len(lengths) - references
    _check_bleu(lengths[:N], bool(references))
    find = _matches_in if references else _matches
    counts = _ngram_counts(tokens, lengths, max_n)
    matches = np.stack([find(*of_order, N) for of_order in counts], axis=1)  # (N, max_n)
    closest = _closest_in(lengths[:N], lengths[N:]) if references else _closest_lengths(lengths)
    lengths = lengths[:N]
    totals = np.maximum(lengths[:, None] - np.arange(max_n), 0)  # (N, max_n)
    scores = []
    # Python's log and exp, one text at a time: numpy's differ from them in the last bit on some machines.
    for match, total, c, r in zip(matches.tolist(), totals.tolist(), lengths.tolist(), closest.tolist()):
        if match[0]:
            penalty = math.exp(1 - r / c) if c < r else 1.0
            scores.append(penalty * score(match, total))
    return math.fsum(scores) / N  # fsum: the same float for any order of the texts


def _check_bleu(lengths: np.ndarray, has_references: bool) -> None:
    """ValueError if texts of these lengths have no BLEU against references, or no self-BLEU."""
    N = len(lengths)
    if has_references and N < 1:
        raise ValueError(f"BLEU of {N} text(s): it needs at least one")
    if not has_references and N < 2:
        raise ValueError(
            f"self-BLEU of {N} text(s): it compares each text with the others and needs at least 2 texts"
        )
    if not lengths.any():
        what, least = ("BLEU", "one") if has_references else ("self-BLEU", "at least 2")
        raise ValueError(
            f"{what} of {N} texts, all of them empty: it needs {least} with something to compare"
        )


def _nltk_score(match: list[int], total: list[int]) -> float:
    """Geometric mean of the precisions, by nltk's method1 of Chen and Cherry 2014.

    0 matches count as 0.1, 0 n-grams as 1.
    """
    weight = 1 / len(match)
    return math.exp(math.fsum(weight * math.log((m or 0.1) / max(t, 1)) for m, t in zip(match, total)))


def _sacre_score(match: list[int], total: list[int]) -> float:
    """Geometric mean of the precisions in percent, over the orders that the text has.

    The k-th order without a match counts as 2^-k matches.
    """
    logs, halving = [], 1.0
    for m, t in zip(match, total):
        if not t:
            break
        if not m:
            halving *= 2
        logs.append(math.log(100.0 * m / t if m else 100.0 / (halving * t)))
    return math.exp(sum(logs) / len(logs))  # sum, not fsum: to the last bit what sacrebleu computes


def self_bleu(texts: Sequence[Sequence[Hashable]], max_n: int = 4) -> float:
    """Self-BLEU, the nltk variant (Zhu et al. 2018, Texygen, arXiv 1802.01886): 0..1, higher is less diverse.

    The mean over the texts of nltk's sentence_bleu(all other texts, text, weights=(1/max_n,) * max_n,
    smoothing_function=SmoothingFunction().method1), to the last bit what nltk 3.10 gives. It takes one sort
    of all n-grams for each order instead of N^2 comparisons.

    An empty text scores 0. A text of fewer than max_n tokens is scored as in nltk, with 0.1 for each
    precision that it lacks: short texts look diverse.
    ValueError for fewer than 2 texts, for texts that are all empty, for a string in place of a sequence of
    words, and for max_n < 1.
    """
    return _mean_bleu(*_encode(texts), max_n, _nltk_score)


def self_bleu_sacre(texts: Sequence[str]) -> float:
    """Self-BLEU, the sacreBLEU variant (Post 2018, arXiv 1804.08771): 0..100, higher is less diverse.

    The mean over the texts of sacrebleu.sentence_bleu(text, all other texts).score, with the 13a tokenizer,
    orders 1 to 4, exponential smoothing and effective order, to the last bit what sacrebleu 2.6 gives.
    The texts are raw strings: the 13a tokenizer splits them.
    ValueError for fewer than 2 texts, for texts that are all empty, and for a text that is not a string.
    """
    _check_raw(texts)
    return _mean_bleu(*_encode_13a(texts), 4, _sacre_score)


def bleu_sacre(texts: Sequence[str], references: Sequence[str]) -> float:
    """BLEU against held-out human texts, the sacreBLEU variant: 0..100, higher has more phrases of theirs.

    The mean over the texts of sacrebleu.sentence_bleu(text, references).score, to the last bit what sacrebleu
    2.6 gives. Like self-BLEU it depends on how many references there are and on how long the texts are.
    ValueError for no text or no reference, for texts that are all empty, and for a text that is not a string.
    Source: Yu et al. 2017, SeqGAN, arXiv 1609.05473, sec. 5.
    """
    _check_raw(texts)
    _check_raw(references)
    if not references:
        raise ValueError("BLEU against 0 references: it needs at least one")
    return _mean_bleu(*_encode_13a([*texts, *references]), 4, _sacre_score, len(references))


def _check_raw(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise ValueError(f"BLEU of the string {texts[:40]!r}: it needs a list of texts")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(
                f"text {i} is a {type(text).__name__}, and the 13a tokenizer needs the raw string: "
                "decode or join it first"
            )


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
        raise ValueError(f"distinct-{n} of {len(texts)} text(s) without a token: it needs at least one token")
    gram, _, _ = _last_counts(tokens, lengths, n)
    return float((gram.max(initial=-1) + 1) / len(tokens))


def seq_rep_n(texts: Sequence[Sequence[Hashable]], n: int = 4) -> float:
    """Seq-rep-n: mean over texts of 1 - different n-grams / n-grams, from 0 (no repetition) to 1.

    Texts of fewer than n tokens have no n-gram and are left out of the mean.
    ValueError where no text is left, and for n < 1.
    Source: Welleck et al. 2020, arXiv 1908.04319.
    """
    tokens, lengths = _encode(texts)
    _, text, _ = _last_counts(tokens, lengths, n)
    different, total = np.bincount(text, minlength=len(lengths)), lengths - n + 1
    scored = total > 0
    if not scored.any():
        raise ValueError(
            f"seq-rep-{n} of {len(texts)} text(s), the longest of {lengths.max(initial=0)} tokens: "
            f"it needs a text of at least {n} tokens"
        )
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
        raise ValueError(f"Zipf coefficient of {len(frequency)} different word(s): a line needs at least 2")
    x, y = np.log(np.arange(1, len(frequency) + 1)), np.log(frequency)
    x -= x.mean()
    return float(-(x @ (y - y.mean())) / (x @ x))


# ---- probabilities ----


class Calibration:
    """Sums for the expected calibration error, chunk by chunk: three numbers a bin.

    Bin b of `bins` equal ones holds the confidences in (b/bins, (b+1)/bins], as in Guo et al. 2017.
    Confidence 0 is in the first.
    """

    def __init__(self, bins: int = 15):
        if bins < 1:
            raise ValueError(f"bins = {bins}: calibration needs at least 1 bin; 15 is customary")
        self.edges = np.linspace(0, 1, bins + 1)
        self.count = np.zeros(bins, np.int64)
        self.confidence, self.correct = np.zeros(bins), np.zeros(bins)

    def add(self, confidence: ArrayLike, correct: ArrayLike) -> None:
        """Adds predictions: the probability of each and whether it was right (bool or 0/1), in one shape.

        ValueError for different shapes, for a confidence that is NaN or outside 0..1 (beyond float32
        rounding), and for a `correct` other than 0 and 1.
        """
        p, hit = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
        if p.shape != hit.shape:
            raise ValueError(
                f"confidence has shape {p.shape} and correct {hit.shape}: give one of each for a prediction"
            )
        p, hit = p.ravel(), hit.ravel()
        wrong = ~((p >= 0) & (p <= 1 + ROUNDING))  # written so that NaN is wrong
        if wrong.any():
            raise ValueError(
                f"confidence {p[wrong][0]} is not in 0..1: give probabilities, not logits or their logs"
            )
        if not np.isin(hit, (0, 1)).all():
            odd = hit[~np.isin(hit, (0, 1))][0]
            raise ValueError(f"correct holds {odd}: give True/False or 1/0, such as prediction == target")
        bins = len(self.count)
        b = np.clip(np.searchsorted(self.edges, p) - 1, 0, bins - 1)
        self.count += np.bincount(b, minlength=bins)
        self.confidence += np.bincount(b, p, minlength=bins)
        self.correct += np.bincount(b, hit, minlength=bins)

    def ece(self) -> float:
        """Sum over bins of (count / all) |accuracy - mean confidence|, 0..1. ValueError before any `add`."""
        if not self.count.sum():
            raise ValueError("expected calibration error of 0 predictions: add at least one")
        return float(np.abs(self.correct - self.confidence).sum() / self.count.sum())


def ece(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """Expected calibration error, 0..1: `Calibration` in one call.

    Source: Guo et al. 2017, arXiv 1706.04599.
    """
    calibration = Calibration(bins)
    calibration.add(confidence, correct)
    return calibration.ece()


def _mean_nll(nll_sum: float, count: int, unit: str) -> float:
    if count < 1:
        raise ValueError(f"{count} {unit}: the mean needs at least 1 of them")
    mean = float(nll_sum) / count
    if not mean >= -ROUNDING:  # written so that NaN is a mistake
        raise ValueError(
            f"an NLL sum of {nll_sum} over {count} {unit}: it must be a number >= 0, "
            "the sum of -log p, not of log p"
        )
    return mean


def perplexity(nll_sum: float, count: int) -> float:
    """exp(nll_sum / count), for a sum of -log p in nats.

    Count tokens or words, and say which: the two are not comparable.
    inf where nll_sum is inf (some p was 0; nothing is clamped), and where exp overflows, from 709.78 nats on.
    ValueError for a count below 1, and for an NLL sum that is NaN or negative.
    """
    mean = _mean_nll(nll_sum, count, "tokens or words")
    try:
        return math.exp(mean)
    except OverflowError:
        return math.inf


def bits_per_byte(nll_sum: float, n_bytes: int) -> float:
    """nll_sum / (ln 2 * n_bytes), for a sum of -log p in nats: comparable across tokenizers.

    n_bytes counts the UTF-8 bytes of the original text. inf where nll_sum is inf. ValueError for n_bytes
    below 1, and for an NLL sum that is NaN or negative.
    """
    return _mean_nll(nll_sum, n_bytes, "bytes") / math.log(2)


# ---- against a known truth ----


class Recovery:
    """Sums of how a model's next-token distribution m differs from the known truth p, chunk by chunk.

    `means` gives them per position. A token is valid where p > 0. Let m' be m renormalised over the valid
    tokens, and `invalid` its mass on the others. Then KL(p||m) = KL(p||m') - log(1 - invalid): one part of
    the divergence is how the valid tokens share their mass, the other is mass spent on what the language
    forbids. All in nats.
    """

    DECADES = 8  # of the truth's probability: (0.1, 1], (0.01, 0.1], ..., the last all that is smaller
    # m's mass over p's at one position is counted between these: 50 bins a decade, so that a quantile is
    # known to 5%, and an edge at 0.5
    RATIOS = np.sort(np.append(10.0 ** (np.arange(-400, 301) / 50), 0.5))
    QUANTILES = (5, 25, 50, 75, 95)  # in percent

    SUMS = (
        *("kl_truth_model", "kl_model_truth", "tv", "mass_observed", "mass_alternatives", "mass_invalid"),
        *("true_observed", "nll", "true_nll", "entropy"),
    )

    def __init__(self) -> None:
        self.count = 0
        self.sums = dict.fromkeys(self.SUMS, 0.0)
        self.covered, self.judged = 0.0, 0
        # mass that m, and that p, gives to valid tokens other than the observed one
        self.alternatives = np.zeros((2, self.DECADES))
        # positions by m's mass over p's on the alternatives, and on the observed token: below RATIOS[0], ...
        self.ratios = np.zeros((2, len(self.RATIOS) + 1))

    def add(self, log_m: ArrayLike, p: ArrayLike, token: ArrayLike) -> None:
        """Adds N positions: log m (N, V), p (N, V) and the observed token (N,).

        ValueError for different shapes, for rows of p that do not sum to 1, and for a token that p forbids.
        """
        log_m, p, token = np.asarray(log_m), np.asarray(p, np.float64), np.asarray(token)
        if log_m.shape != p.shape or token.shape != p.shape[:1]:
            raise ValueError(
                f"log m has shape {log_m.shape}, p {p.shape} and token {token.shape}: "
                "give (N, V), (N, V) and (N,)"
            )
        off = np.abs(p.sum(1) - 1) > ROUNDING
        if off.any():
            raise ValueError(
                f"a row of p sums to {p[off][0].sum()}: give the truth's probabilities, not their logarithms"
            )
        at, valid = np.arange(len(p)), p > 0
        if not valid[at, token].all():
            forbidden = token[~valid[at, token]][0]
            raise ValueError(
                f"token {forbidden} is observed where the truth gives it probability 0: "
                "it is another text's truth"
            )
        # what follows works on the valid tokens, which are few: one after the other, row by row
        starts = np.cumsum(valid.sum(1)) - valid.sum(1)

        def total(x: np.ndarray) -> np.ndarray:
            """Sum of each row (N,)."""
            return np.add.reduceat(x, starts)

        p, log_valid = p[valid], log_m[valid].astype(np.float64)
        m, log_p = np.exp(log_valid), np.log(p)
        on_valid = total(m)
        invalid = np.where(valid, 0, np.exp(log_m)).sum(1, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            kl_valid = total(np.where(m > 0, m * (log_valid - log_p), 0)) / on_valid - np.log(on_valid)
        observed = np.searchsorted(np.flatnonzero(valid), at * valid.shape[1] + token)
        self.count += len(at)
        values = {
            "kl_truth_model": total(p * (log_p - log_valid)),
            "kl_model_truth": np.where(on_valid > 0, kl_valid, math.inf),
            "tv": (total(np.abs(m - p)) + invalid) / 2,
            "mass_observed": m[observed],
            "mass_alternatives": on_valid - m[observed],
            "mass_invalid": invalid,
            "true_observed": p[observed],
            "nll": -log_valid[observed],
            "true_nll": -log_p[observed],
            "entropy": -total(p * log_p),
        }
        for key, value in values.items():
            self.sums[key] += float(value.sum())
        decade = np.clip(np.floor(-log_p / math.log(10)).astype(np.int64), 0, self.DECADES - 1)
        other = np.ones(len(p), bool)
        other[observed] = False
        self.alternatives += [np.bincount(decade[other], x[other], self.DECADES) for x in (m, p)]
        several = valid.sum(1) > 1  # where there are alternatives
        on_others, due = (total(np.where(other, x, 0))[several] for x in (m, p))
        self._count_ratios(on_others / due, (m[observed] / p[observed])[several])

    def _count_ratios(self, *ratios: np.ndarray) -> None:
        """Adds m's mass over p's (N,), on the alternatives and on the observed token."""
        for counts, ratio in zip(self.ratios, ratios):
            bins = np.searchsorted(self.RATIOS, ratio, "right")
            counts += np.bincount(bins, minlength=len(counts))

    def totals(self) -> list[float]:
        """All that `add` has counted: those of several processes, added up, are those of all positions."""
        return [self.count, *self.sums.values(), *self.alternatives.ravel(), *self.ratios.ravel()]

    def set_totals(self, totals: Sequence[float]) -> None:
        """Takes the place of what was counted; `totals`: sums of those of several objects."""
        self.count = int(totals[0])
        sums, decades = 1 + len(self.sums), self.alternatives.size
        self.sums = dict(zip(self.SUMS, totals[1:sums]))
        self.alternatives = np.reshape(totals[sums : sums + decades], (2, -1))
        self.ratios = np.reshape(totals[sums + decades :], (2, -1))

    def add_coverage(self, p: ArrayLike, reachable: ArrayLike) -> None:
        """Adds p (N, V) and whether the sampler can draw each token (N, V) bool.

        It may be called for some of the positions only.
        """
        covered = np.where(reachable, p, 0).sum(1)
        self.covered, self.judged = self.covered + float(covered.sum()), self.judged + len(covered)

    def means(self) -> dict[str, float]:
        """Means over the positions. ValueError before any `add`.

        kl_truth_model      KL(p||m); inf where m gives a valid token probability 0
        kl_model_truth      KL(m'||p) with m' as above: KL(m||p) is inf once m has mass on an invalid token
        tv                  total variation, sum_v |m - p| / 2: finite whatever has probability 0
        mass_observed       m's mass on the observed token; true_observed is p's
        mass_alternatives   m's mass on the other valid tokens
        mass_invalid        m's mass on the rest
        nll, true_nll       -log of m's and of p's probability of the observed token
        ppl_floor           exp(nll - true_nll): m's perplexity over the truth's own, 1 at best
        entropy             H(p), of which true_nll is an estimate
        coverage            p's mass on the tokens that the sampler can draw, if `add_coverage` was called
        alternatives        mass_alternatives / p's mass on the same tokens: below 1, m gives them too little
        alternatives_error  sum over the decades of p of |m's - p's mass on alternatives|, from 0 to 2
        """
        if not self.count:
            raise ValueError("recovery of the truth at 0 positions: add at least one")
        out = {key: value / self.count for key, value in self.sums.items()}
        if self.judged:
            out["coverage"] = self.covered / self.judged
        m, p = self.alternatives
        above = out["nll"] - out["true_nll"]
        out["ppl_floor"] = math.exp(min(above, 709.0)) if above < math.inf else above
        out["alternatives"] = float(m.sum() / p.sum()) if p.sum() else math.nan
        out["alternatives_error"] = float(np.abs(m - p).sum() / self.count)
        return out

    def by_decade(self) -> list[tuple[float, float]]:
        """(m's, p's) mean mass on the alternatives whose true probability is in (0.1, 1], (0.01, 0.1], ..."""
        m, p = self.alternatives / max(1, self.count)
        return list(zip(m.tolist(), p.tolist()))

    def spread(self) -> dict[str, float]:
        """How m's mass over p's differs from position to position, which the means hide; nan at 0 positions.

        Only of positions where the truth allows more than one token: where it allows one, there is no
        alternative. Quantiles are interpolated between RATIOS, and what is below all of these counts as 0.

        alternatives_q05 to q95   QUANTILES of m's mass on the alternatives / p's: 1 where they get their due
        alternatives_below_half   share of positions where that is below 0.5; below_tenth: below 0.1
        observed_q05 to q95       QUANTILES of m's probability of the observed token / p's
        """
        out = {}
        for name, counts in zip(("alternatives", "observed"), self.ratios):
            for percent in self.QUANTILES:
                out[f"{name}_q{percent:02}"] = self._quantile(counts, percent / 100)
        counts = self.ratios[0]
        for name, ratio in (("half", 0.5), ("tenth", 0.1)):
            below = counts[: np.searchsorted(self.RATIOS, ratio) + 1].sum()
            out[f"alternatives_below_{name}"] = float(below / counts.sum()) if counts.any() else math.nan
        return out

    def _quantile(self, counts: np.ndarray, share: float) -> float:
        """The ratio that a `share` of the positions is below, by how many are in each bin."""
        if not counts.any():
            return math.nan
        below = np.cumsum(counts)
        bin = int(np.searchsorted(below, share * below[-1]))
        if bin == 0:
            return 0.0
        if bin == len(self.RATIOS):
            return float(self.RATIOS[-1])
        low, high = self.RATIOS[bin - 1 : bin + 1]
        inside = (share * below[-1] - below[bin - 1]) / counts[bin]
        return float(low * (high / low) ** inside)
