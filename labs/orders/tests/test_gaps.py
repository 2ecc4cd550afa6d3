"""Gaps: templates, sample.py's filling in, densities."""

import re

import numpy as np
import pytest
import torch

from common.errors import UserError
from data.open import load_tokenizer, tokenizer_of
from data.tokenizers import WordTokenizer
from labs.orders import sample
from labs.orders.filling import in_order
from labs.orders.readers import reader_of
from labs.orders.tests.test_filling import q_of
from labs.orders.tests.test_trunk import model_of, of_order
from labs.sequences.gaps import with_gaps
from labs.sequences.paths import Order
from labs.sequences.questions import FREE
from tests.fixtures import TINY, train_on
from training.run import load_model

WORDS = WordTokenizer.of([*"abcdefg", "\n"])


def test_a_template(token_folder):
    a, b, c = (WORDS.encode(w)[0] for w in "abc")
    assert with_gaps("a <2> b <1>", WORDS, 8) == [a, FREE, FREE, b, FREE]
    assert with_gaps("<1><2> c", WORDS, 8) == [FREE] * 3 + [c]
    # byte-level tokens carry the space before them: one left alone would be a token that no text has
    tokenizer = load_tokenizer(token_folder)
    expected = [*tokenizer.encode("the"), FREE, FREE, *tokenizer.encode(" sea")]
    assert with_gaps("the <2> sea", tokenizer, 99) == expected
    for template in ("a b", "a <0>", f"a <2> b <{'9' * 5000}>", "a <4> b <4>"):
        with pytest.raises(UserError):
            with_gaps(template, WORDS, 8)


# ---- sample.py ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled_in(token_folder, tmp_path_factory):
    """out folders of a model of any order, of masked diffusion, and of one that reads from left to right."""
    at = tmp_path_factory.mktemp("orders")
    for order in ("random", "masked", "left_to_right"):
        train_on(token_folder, at / order, tokenizer=TINY["tokenizer"], **of_order(order))
    return {path.name: str(path) for path in at.iterdir()}


@pytest.mark.parametrize(
    "order, how, most",
    [
        ("random", [], 8),
        ("random", ["--order=left_to_right"], 8),
        ("random", ["--order=fractal"], 8),
        ("random", ["--order=speculative"], 8),
        ("random", ["--order=burst"], 14),
        ("random", ["--order=confidence"], 8),
        ("masked", [], 8),
        ("masked", ["--steps=3"], 3),
        ("masked", ["--order=confidence"], 8),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else None,
)
def test_gaps_are_filled_in_and_the_rest_stays(filled_in, capsys, order, how, most):
    assert sample.main([filled_in[order], "--infill=the <4> sea <3> .", *how, "--num_samples=2"]) == 0
    out, err = capsys.readouterr()
    texts = re.split(r"--- sample \d\n", out)[1:]
    assert len(texts) == 2 and texts[0] != texts[1]
    for text in texts:
        assert text.startswith("the") and " sea" in text and text.rstrip("\n").endswith(" .")
    evaluations, free = re.search(r"(\d+) model evaluations for (\d+) tokens", err).groups()
    assert free == "7" and int(evaluations) <= most


def test_one_seed_one_text(filled_in, capsys):
    def text(*flags):
        assert sample.main([filled_in["random"], "--infill=the <9>", *flags]) == 0
        return capsys.readouterr().out

    assert text() == text() != text("--seed=3")
    assert text("--order=fractal") == text("--order=fractal", "--temperature=1")
    assert text("--min_p=1") == text("--temperature=0") != text()  # a cut acts on each place
    for order, how in (("random", "--order=speculative"), ("masked", "--steps=2"), ("random", "--length=5")):
        assert sample.main([filled_in[order], "--prompt=the", "--length=6", how]) == 0
        assert capsys.readouterr().out.startswith("the")
    with pytest.raises(UserError):  # it cannot be told what comes after a gap
        sample.main([filled_in["left_to_right"], "--infill=the <3>"])


@pytest.mark.parametrize("given", [1, 5])
def test_places_that_no_order_has_shift_the_path_as_in_training(given):
    model, text = model_of("any", length=12), torch.full((3, 12), FREE)
    text[:, :given] = 1
    reader = reader_of(model, text, model.head.draws(1, 0))
    rank = in_order(reader, torch.Generator().manual_seed(0), order="fractal", given=given).rank
    trained = Order("fractal").paths(0, np.arange(3), 12, given)[:, given:]
    assert rank.argsort(stable=True)[:, given:].tolist() == trained.tolist()


@torch.no_grad()
def test_density(filled_in, capsys):
    """Of each free place alone, given all that is known, whatever stands around it."""
    command = [filled_in["random"], "--infill=the <2> sea", "--density", "--top=3", "--dtype=float32"]
    assert sample.main(command) == 0
    table = capsys.readouterr().out
    model, ckpt = load_model(filled_in["random"])
    ids = with_gaps("the <2> sea", tokenizer_of(ckpt), 16)
    known = [(i, t) for i, t in enumerate(ids) if t != FREE]
    for place in (i for i, t in enumerate(ids) if t == FREE):
        p = q_of(model, known, place)
        (line,) = [x for x in table.splitlines() if x.split()[:1] == [str(place)]]
        assert all(f"{value:.3f}" in line for value in p.topk(3).values)
        assert f"{-(p * p.log()).sum():.2f}" in line
