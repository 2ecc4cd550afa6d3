"""Beam search and contrastive search against loops without a cache and over all texts. tests/test_export.py
has beam search against transformers."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from test_sample import prompt, tiny

from evaluation.decoding import Decoding, Penalties, TextSearch
from evaluation.sampling import generate
from evaluation.text_search import SEARCHES, beam_search, contrastive_search
from evaluation.truncation import penalised
from model import LanguageModel
from runtime.door import read
from runtime.errors import UserError
from sample import SampleConfig

ALPHA, K = 0.6, 4


def searched(name: str, model: LanguageModel, start: torch.Tensor, length: int, cached=True, **how):
    draws, c = model.head.draws(3, 7), TextSearch(**how)
    return SEARCHES[name](model, start, length, draws, c, cached)


def greedy(model: LanguageModel, start: torch.Tensor, length: int) -> list[int]:
    tokens = generate(model, start, length, model.head.draws(3, 7), Decoding(temperature=0))
    return start[0].tolist() + [int(token) for token, _ in tokens]


class Plain:
    """A model that reads lists, each whole context anew: all of the text until the block is full, then from
    its last half on."""

    def __init__(self, model: LanguageModel):
        self.model = model

    def start(self, n: int) -> int:
        """Where the context of n tokens begins."""
        T, begin = self.model.trunk.context, 0
        for m in range(n + 1):
            begin = m - T // 2 - 1 if m - begin > T else begin
        return begin

    @torch.no_grad()
    def hidden(self, text: list[int]) -> torch.Tensor:
        return self.model.trunk(torch.tensor([text[self.start(len(text)) :]]))[0]

    @torch.no_grad()
    def log_p(self, text: list[int]) -> torch.Tensor:
        return self.model.head.log_probs(self.hidden(text)[-1:], self.model.head.draws(3, 7))


# ---- beams -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bayesian", [False, True])
def test_enough_beams_find_the_most_probable_text(bayesian):
    model, start = tiny(vocab=5, spread=0.6, bayesian=bayesian), [3, 1]
    plain = Plain(model)
    sums = {
        new: sum(float(plain.log_p(start + list(new[:i]))[0, t]) for i, t in enumerate(new))
        for new in itertools.product(range(5), repeat=3)
    }
    best = max(sums, key=sums.get)
    text, score = searched("beams", model, torch.tensor([start]), 3, beams=25)
    assert text.tolist() == start + list(best) and score == pytest.approx(sums[best] / 3, abs=1e-5)


@pytest.mark.parametrize(
    "head, penalties",
    [
        ("softmax", {}),
        ("softmax", dict(no_repeat_ngram=2, frequency_penalty=0.3)),
        ("sparsemax", {}),
        ("sparsemax", dict(no_repeat_ngram=2)),  # some texts cannot go on
    ],
    ids=str,
)
def test_beam_search_is_a_plain_loop(head, penalties):
    """Some times past block_size; sparsemax has fewer texts of any mass than there are beams at first."""
    model, start = tiny(head, spread=0.5), prompt(1, 5)
    plain, beam = Plain(model), [(0.0, start[0].tolist())]
    for n in range(30):
        longer = []
        for total, text in beam:
            log_p = penalised(plain.log_p(text), torch.tensor([text]), n, Penalties(**penalties))[0].tolist()
            longer += [(total + lp, [*text, token]) for token, lp in enumerate(log_p)]
        beam = sorted(longer, key=lambda x: -x[0])[:6]
    text, score = searched("beams", model, start, 30, beams=6, **penalties)
    assert text.tolist() == beam[0][1] and score == pytest.approx(beam[0][0] / 30, abs=1e-4)
    assert text.tolist() != greedy(model, start, 30)


def test_one_beam_is_greedy():
    model = tiny()
    text, _ = beam_search(model, prompt(1, 5), 30, model.head.draws(3, 7), TextSearch(beams=1))
    assert text.tolist() == greedy(model, prompt(1, 5), 30)


# ---- contrastive -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_contrastive_search_is_a_plain_loop(head):
    model, start = tiny(head, spread=0.5), prompt(1, 5)
    plain, text, total = Plain(model), start[0].tolist(), 0.0
    for _ in range(30):
        log_p = plain.log_p(text)[0]
        scores = {}
        for token in log_p.argsort(descending=True)[:K].tolist():
            *before, h = plain.hidden([*text, token])
            alike = max(float(F.cosine_similarity(h, state, dim=0)) for state in before)
            scores[token] = (1 - ALPHA) * float(log_p[token].exp()) - ALPHA * alike
        text.append(max(scores, key=scores.get))
        total += float(log_p[text[-1]])
    got, score = searched("contrastive", model, start, 30, contrastive=ALPHA, top_k=K)
    assert got.tolist() == text and score == pytest.approx(total / 30, abs=1e-4)
    assert text != greedy(model, start, 30)


def test_contrastive_search_of_one_token_is_greedy():
    want = greedy(tiny(), prompt(1, 5), 30)
    assert searched("contrastive", tiny(), prompt(1, 5), 30, contrastive=1.0, top_k=1)[0].tolist() == want


def test_contrastive_search_writes_nothing_of_probability_0():
    """Though the hidden state of such a token may be the least like those before."""
    model, start = tiny("sparsemax", spread=0.5), prompt(1, 5)
    text, score = contrastive_search(
        model, start, 30, model.head.draws(1, 0), TextSearch(contrastive=1.0, top_k=1000)
    )
    assert torch.tensor(score).isfinite()
    plain = Plain(model)
    support = [int(plain.log_p(text[:n].tolist())[0].isfinite().sum()) for n in range(5, 35)]
    assert 1 < max(support) < 61  # some tokens have none


# ---- both --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block, start", [(12, 5), (13, 13), (2, 2), (1, 1)])
@pytest.mark.parametrize("how", [dict(beams=5), dict(contrastive=ALPHA, top_k=K)], ids=str)
def test_cached_equals_uncached(how, block, start):
    model, name = tiny(block=block), next(iter(how))
    (a, x), (b, y) = (searched(name, model, prompt(1, start), 40, cached, **how) for cached in (True, False))
    assert a.tolist() == b.tolist() and x == pytest.approx(y, abs=1e-4) and len(a) == start + 40


@pytest.mark.parametrize(
    "flags, says",
    [
        ("--beams=0", "beams = 0: must be at least 1"),
        ("--contrastive=1.5", "contrastive = 1.5: must be at most 1"),
        ("--contrastive=0.6", "contrastive = 0.6: it chooses among the most probable tokens; .*--top_k=4"),
        ("--contrastive=0.6 --top_k=4 --beams=2", "--beams and --contrastive are two ways"),
        ("--beams=2 --temperature=0.5", "temperature = 0.5: --beams searches for one text and draws none"),
        ("--beams=2 --min_k=3", "min_k = 3.0: --beams"),
        ("--beams=2 --top_k=5", "top_k = 5: --beams"),
        ("--beams=2 --num_samples=2", "num_samples = 2: --beams"),
        ("--beams=2 --show", "show = True: --beams"),
        ("--contrastive=0.6 --top_k=4 --uncertainty", "uncertainty = True: --contrastive"),
        ("--contrastive=0.6 --top_k=4 --min_p=0.1", "min_p = 0.1: --contrastive"),
        ("--contrastive=0.6 --top_k=4 --dry_multiplier=1", "dry_multiplier = 1.0: --contrastive"),
        ("--beams=2 --infill=<3>", "--beams is for text from left to right"),
        ("--contrastive=0.6 --top_k=4 --speculative", "--contrastive is for text from left to right"),
    ],
)
def test_what_goes_with_no_search_is_one_line(flags, says):
    with pytest.raises(UserError, match=f"^{says}") as e:
        read(SampleConfig, ["run", *flags.split()])
    assert "\n" not in str(e.value)


def test_beams_go_with_penalties():
    assert read(SampleConfig, ["run", "--beams=2", "--no_repeat_ngram=3"]).search == "beams"
