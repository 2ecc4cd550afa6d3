"""Gaps: templates, sample.py's filling in, densities."""

import re

import numpy as np
import pytest
import torch

from common.errors import UserError
from data.corpus import tokenizer_of
from data.tokenizers import WordTokenizer
from labs.orders import gaps, sample
from labs.orders.filling import in_order
from labs.orders.readers import reader_of
from labs.orders.tests.test_filling import q_of
from labs.orders.tests.test_trunk import model_of, of_order
from labs.orders.trunk import ORDERS, Order
from labs.sequences.questions import FREE
from tests.fixtures import TINY, train_on
from training.checkpoint import load_model

WORDS = WordTokenizer.of([*"abcdefg", "\n"])


def test_a_template():
    ids = {w: WORDS.encode(w)[0] for w in "abcdefg"}
    assert gaps.with_gaps("a <2> b <1>", WORDS, 8) == [ids["a"], FREE, FREE, ids["b"], FREE]
    assert gaps.with_gaps("<3>", WORDS, 8) == [FREE] * 3
    assert gaps.with_gaps("<1><2> c", WORDS, 8) == [FREE] * 3 + [ids["c"]]


def test_the_space_before_a_gap_is_the_gaps(token_folder):
    """Byte-level tokens carry the space before them: one left alone would be a token that no text has."""
    from data.corpus import load_tokenizer

    tokenizer = load_tokenizer(token_folder)
    expected = [*tokenizer.encode("the"), FREE, FREE, *tokenizer.encode(" sea")]
    assert gaps.with_gaps("the <2> sea", tokenizer, 99) == expected


@pytest.mark.parametrize(
    "template", ["a b", "a <0>", "a <99>", f"a <2> b <{'9' * 5000}>", "a <4> b <4>", "<-3>"]
)
def test_templates_that_cannot_be_filled_in(template):
    with pytest.raises(UserError):
        gaps.with_gaps(template, WORDS, 8)


# ---- sample.py ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled_in(token_folder, tmp_path_factory):
    """out folders of a model of any order, of masked diffusion, and of one that reads from left to right."""
    runs = {}
    for order in ("random", "masked", "left_to_right"):
        out = tmp_path_factory.mktemp("orders") / order
        runs[order] = str(out)
        train_on(token_folder, out, tokenizer=TINY["tokenizer"], **of_order(order))
    return runs


def out_of(capsys) -> tuple[str, str]:
    done = capsys.readouterr()
    return done.out, done.err


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
    out, err = out_of(capsys)
    texts = re.split(r"--- sample \d\n", out)[1:]
    assert len(texts) == 2 and texts[0] != texts[1]
    for text in texts:
        assert text.startswith("the") and " sea" in text and text.rstrip("\n").endswith(" .")
    evaluations, free = re.search(r"(\d+) model evaluations for (\d+) tokens", err).groups()
    assert free == "7" and int(evaluations) <= most


def test_one_seed_one_text(filled_in, capsys):
    def text(*flags):
        assert sample.main([filled_in["random"], "--infill=the <9>", *flags]) == 0
        return out_of(capsys)[0]

    assert text() == text() != text("--seed=3")
    assert text("--order=fractal") == text("--order=fractal", "--temperature=1")
    assert text("--min_p=1") == text("--temperature=0") != text()  # a cut acts on each place


def test_a_prompt_is_continued_many_tokens_at_a_time(filled_in, capsys):
    for order, how in (("random", "--order=speculative"), ("masked", "--steps=2"), ("random", "--length=5")):
        assert sample.main([filled_in[order], "--prompt=the", "--length=6", how]) == 0
        assert out_of(capsys)[0].startswith("the")


@pytest.mark.parametrize("order", ["fractal", "random", "masked"])
def test_places_are_filled_in_as_the_run_was_trained(order):
    """Unless a flag says otherwise."""
    model = model_of(order, length=12)
    text = torch.full((40, 10), FREE)
    text[:, [2, 9]] = 1
    fills = sample.filler(sample.FillConfig("out/x"), model.trunk.kind, model.trunk.fills)
    reader = reader_of(model, text, model.head.draws(1, 0))
    rank = fills(reader, generator=torch.Generator().manual_seed(0)).rank
    assert (rank[:, [2, 9]] == 0).all()
    paths = [[p for p in row.argsort(stable=True).tolist() if row[p]] for row in rank]
    if order == "fractal":
        assert paths == [[p for p in ORDERS["fractal"](12, None) if p < 10 and p not in (2, 9)]] * 40
    else:
        assert len({tuple(path) for path in paths}) > 20  # each text has its own


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
    table, _ = out_of(capsys)
    model, ckpt = load_model(filled_in["random"])
    ids = gaps.with_gaps("the <2> sea", tokenizer_of(ckpt), 16)
    known = [(i, t) for i, t in enumerate(ids) if t != FREE]
    for place in (i for i, t in enumerate(ids) if t == FREE):
        p = q_of(model, known, place)
        (line,) = [x for x in table.splitlines() if x.split()[:1] == [str(place)]]
        assert all(f"{value:.3f}" in line for value in p.topk(3).values)
        assert f"{-(p * p.log()).sum():.2f}" in line


@pytest.mark.parametrize(
    "order, flags, key",
    [
        ("left_to_right", ["--infill=the <3>"], "left to right"),
        ("random", ["--infill=the"], "gap"),
        ("masked", ["--steps=3", "--order=random", "--length=5"], "steps"),
        ("random", ["--infill=<3>", "--order=sideways"], "order"),
        ("random", ["--order=speculative", "--length=50"], "50"),
    ],
)
def test_what_cannot_be_filled_in_is_refused(filled_in, order, flags, key):
    with pytest.raises(UserError, match=key):
        sample.main([filled_in[order], *flags])


def test_the_core_s_sample_says_where_gaps_are_filled_in(filled_in):
    from sample import main

    for argv in ([filled_in["masked"]], [filled_in["random"], "--infill=<3>"]):
        with pytest.raises(UserError, match=r"labs/orders/sample\.py"):
            main(argv)
    assert main([filled_in["random"], "--prompt=the", "--length=3"]) == 0
