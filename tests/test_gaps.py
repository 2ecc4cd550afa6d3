"""Gaps: templates, sample.py's filling in, densities."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers.decoders import ByteFallback

import sample
from data.orders import ORDERS, Order
from data.tokenizers import ByteTokenizer, WordTokenizer
from evaluation import gaps
from evaluation.any_order import FREE, reader_of
from evaluation.filling import in_order, unwatched
from tests.test_any_order import q_of
from tests.test_orders import model_of

WORDS = WordTokenizer.of([*"abcdefg", "\n"])


def test_a_template():
    ids = {w: WORDS.encode(w)[0] for w in "abcdefg"}
    assert gaps.with_gaps("a <2> b <1>", WORDS, 8) == [ids["a"], FREE, FREE, ids["b"], FREE]
    assert gaps.with_gaps("<3>", WORDS, 8) == [FREE] * 3
    assert gaps.with_gaps("<1><2> c", WORDS, 8) == [FREE] * 3 + [ids["c"]]


def test_the_space_before_a_gap_is_the_gaps(token_folder):
    """Byte-level tokens carry the space before them: one left alone would be a token that no text has."""
    from data.prepared import load_tokenizer

    tokenizer = load_tokenizer(token_folder)
    expected = [*tokenizer.encode("the"), FREE, FREE, *tokenizer.encode(" sea")]
    assert gaps.with_gaps("the <2> sea", tokenizer, 99) == expected


@pytest.mark.parametrize(
    "template, says",
    [
        ("a b", "'a b' has no gap: write <5>"),
        ("a <0>", "the gap <0> in 'a <0>' is of no token"),
        ("a <99>", "the gap <99> is longer than this model's block_size = 8"),
        (f"a <2> b <{'9' * 5000}>", f"the gap <{'9' * 20}> is longer than this model's block_size = 8"),
        ("a <4> b <4>", "the text has 10 tokens with its gaps; this model reads 8"),
        ("<-3>", "has no gap"),
    ],
)
def test_templates_that_cannot_be_filled_in(template, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        gaps.with_gaps(template, WORDS, 8)


def test_colours_show_the_rounds_and_all_of_the_text():
    ids = WORDS.encode("a b c d")
    shown = gaps.coloured([ids[0], ids[1], FREE, ids[3]], [0, 1, 0, 2], WORDS)
    assert re.sub(r"\x1b\[[\d;]*m", "", shown) == "a b _ d"
    assert len(set(re.findall(r"38;5;(\d+)m", shown))) == 2


def test_a_character_of_several_tokens_is_shown_once_it_is_whole(token_folder):
    from data.prepared import load_tokenizer

    tokenizer = load_tokenizer(token_folder)
    ids = tokenizer.encode("né!")
    shown = gaps.coloured(ids, list(range(1, len(ids) + 1)), tokenizer)
    assert re.sub(r"\x1b\[[\d;]*m", "", shown) == "né!"


class Bytes:
    """A tokenizer of bytes."""

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")


def test_a_character_of_several_tokens_is_added_by_its_last():
    assert gaps.added([*"é!".encode()], Bytes()) == ["", "é", "!"]
    assert gaps.added([97, 0xC3, 98], Bytes()) == ["a", "", "\ufffdb"]
    assert gaps.added([97, 0xC3], Bytes()) == ["a", "\ufffd"]


def test_a_character_that_is_unread_until_the_next_is_whole_stands_once():
    """As tokenizers with ByteFallback do: they decode a run of bytes as a whole."""
    fallback = SimpleNamespace(decode=lambda ids: ByteFallback().decode([f"<0x{i:02X}>" for i in ids]))
    assert gaps.added([*"é€".encode()], fallback) == ["", "é", "", "", "€"]
    shown = gaps.coloured([*"é€".encode()], [1, 2, 3, 4, 5], fallback)
    assert re.sub(r"\x1b\[[\d;]*m", "", shown) == "é€"


# ---- sample.py ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled_in(token_folder, tmp_path_factory):
    """out folders of a model of any order, of masked diffusion, and of one that reads from left to right."""
    import train
    from tests.fixtures import TINY, train_in_process

    runs = {}
    for order in ("random", "masked", "left_to_right"):
        runs[order] = str(tmp_path_factory.mktemp("orders") / order)
        config = train.TrainConfig(**TINY | dict(name=order, order=order, out_dir=runs[order]))
        assert train_in_process(config, token_folder) == 0
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
        ("random", ["--speculative"], 8),
        ("random", ["--burst"], 14),
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
    for order, how in (("random", "--speculative"), ("masked", "--steps=2"), ("random", "--length=5")):
        assert sample.main([filled_in[order], "--prompt=the", "--length=6", how]) == 0
        assert out_of(capsys)[0].startswith("the")


@pytest.mark.parametrize("order", ["fractal", "random", "masked"])
def test_places_are_filled_in_as_the_run_was_trained(order):
    """Unless a flag says otherwise."""
    model = model_of("masked" if order == "masked" else "any", length=12)
    text = torch.full((40, 10), FREE)
    text[:, [2, 9]] = 1
    fills = sample.filler(sample.SampleConfig("out/x", infill="<3>"), order)
    reader = reader_of(model, text, model.head.draws(1, 0))
    rank = fills(reader, generator=torch.Generator().manual_seed(0), watch=unwatched).rank
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


def test_a_terminal_is_drawn_over(filled_in, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert sample.main([filled_in["random"], "--infill=the <3>"]) == 0
    out, _ = out_of(capsys)
    frames = out.split("\x1b[J")[1:]
    plain = [re.sub(r"\x1b\[[\d;]*\w", "", f).strip() for f in frames]
    assert len(frames) == 3 and [f.count("_") for f in plain] == [2, 1, 0]


@torch.no_grad()
def test_density(filled_in, capsys, tmp_path):
    """Of each free place alone, given all that is known, whatever stands around it."""
    from runtime.checkpoint import load_model

    save = tmp_path / "sub" / "d"
    command = [filled_in["random"], "--infill=the <2> sea", "--density", "--top=3", "--dtype=float32"]
    assert sample.main([*command, f"--save={save}"]) == 0
    table, _ = out_of(capsys)
    found = json.loads((tmp_path / "sub" / "d.json").read_text())
    model, ckpt = load_model(filled_in["random"])
    tokenizer = sample.tokenizer_of(ckpt)
    ids = gaps.with_gaps("the <2> sea", tokenizer, 16)
    known = [(i, t) for i, t in enumerate(ids) if t != FREE]
    free = [i for i, t in enumerate(ids) if t == FREE]
    assert list(found) == [str(i) for i in free]
    for place in free:
        p = q_of(model, known, place)
        best = p.topk(3)
        got = found[str(place)]["candidates"]
        assert [c["p"] for c in got] == pytest.approx(best.values.tolist(), rel=1e-4)
        assert [c["token"] for c in got] == [tokenizer.decode([i]) for i in best.indices.tolist()]
        assert found[str(place)]["entropy"] == pytest.approx(-(p * p.log()).sum().item(), rel=1e-4)
        assert f"{got[0]['p']:.3f}" in table
    assert {p.name for p in (tmp_path / "sub").iterdir()} == {"d.json", "d.png"}


@pytest.mark.parametrize("flags", [[], ["--speculative"]], ids=["one a pass", "speculative"])
def test_a_text_that_is_filled_in_is_saved(filled_in, capsys, tmp_path, flags):
    command = [filled_in["random"], "--infill=the <4> sea", *flags, f"--save={tmp_path / 'sub' / 'f'}"]
    assert sample.main(command) == 0
    text, _ = out_of(capsys)
    pieces = json.loads((tmp_path / "sub" / "f.json").read_text())["tokens"]
    assert "".join(piece for piece, _ in pieces) == text.rstrip("\n")
    ranks = [rank for _, rank in pieces]
    assert ranks.count(0) == len(pieces) - 4 and max(ranks) <= 4 and ranks[0] == ranks[-1] == 0
    if not flags:
        assert sorted(ranks)[-4:] == [1, 2, 3, 4]
    assert (tmp_path / "sub" / "f.png").stat().st_size


def test_a_character_of_several_tokens_is_in_the_last_ones_piece():
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode("é!")
    assert gaps.pieces(ids, [1, 2, 0], tokenizer) == [("", 1), ("é", 2), ("!", 0)]


@pytest.mark.parametrize(
    "order, flags, says",
    [
        ("left_to_right", ["--infill=the <3>"], "reads from left to right, it cannot see what stands after"),
        ("random", ["--infill=the"], "has no gap"),
        ("random", ["--speculative", "--burst"], "--speculative and --burst are two ways"),
        ("random", ["--steps=3"], "steps = 3: they are those of masked diffusion"),
        ("random", ["--infill=<3>", "--order=sideways"], "order = 'sideways': must be ''"),
        ("random", ["--order=fractal", "--speculative"], "--order and --speculative are two ways"),
        ("random", ["--infill=<3>", "--length=7"], "leave --length out"),
        ("random", ["--density", "--num_samples=2"], "--density draws nothing"),
        ("masked", ["--uncertainty", "--length=5"], "--uncertainty is for text from left to right"),
        ("random", ["--infill=<3>", "--uncertainty"], "--uncertainty is for text from left to right"),
        ("random", ["--save=x"], "it is for what is filled in; give --infill, too"),
        ("random", ["--infill=<3>", "--save=x", "--num_samples=2"], "leave --prompts and --num_samples out"),
        ("random", ["--speculative", "--length=50"], "at most 16 (block_size): give a smaller --length"),
        ("masked", ["--burst"], "this is masked diffusion: give --steps instead"),
        ("masked", ["--prompt=the", "--length=50"], "give a smaller --length"),
    ],
)
def test_what_cannot_be_filled_in_is_refused(filled_in, order, flags, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        sample.main([filled_in[order], *flags])
