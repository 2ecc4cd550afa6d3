"""What an export does of the labs/orders' trunks: fill in gaps, and masked diffusion from left to right."""

import pytest
import torch
from scipy.stats import chisquare
from torch.nn.functional import pad
from transformers import AutoTokenizer, DynamicCache, GenerationMixin

from labs.transformers import custom_generate
from labs.transformers.modeling_nanoheads import NanoHeadsConfig, NanoHeadsForCausalLM
from labs.transformers.tests.exports import cache_of_code, exported, ones, seeded, texts  # noqa: F401
from tests.fixtures import VOCAB

pytest.importorskip("labs.orders")
GAPS = torch.tensor([[5, -1, 7, -1, -1, 2], [-1, -1, -1, -1, -1, -1], [1, 2, 3, 4, 5, -1]])
RANDOM = dict(head="softmax", trunk="any_order", trunk_args={"sinusoidal": True}, gain=4.0)


@pytest.fixture(scope="module")
def filler(token_folder, tmp_path_factory):
    return exported(tmp_path_factory.mktemp("filler"), token_folder, **RANDOM)


@pytest.fixture(scope="module")
def masked(token_folder, tmp_path_factory):
    at = tmp_path_factory.mktemp("masked")
    return exported(at, token_folder, head="entmax15", gain=2.0, trunk="masked", bayesian=True)


REFUSED = dict(output_hidden_states=True, output_attentions=True, inputs_embeds=torch.zeros(1, 2, 32))
REFUSED |= dict(attention_mask=torch.ones(1, 3), past=DynamicCache())


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_answer_is_refused(filler, masked, name):
    for theirs in (filler[1], masked[1]):
        ids = {} if name == "inputs_embeds" else {"input_ids": texts(1, 2)}
        with pytest.raises(ValueError, match=name):
            theirs(**ids, **{name: REFUSED[name]})
        theirs(texts(1, 2), **dict.fromkeys(["output_hidden_states", "token_type_ids"]))


@pytest.mark.parametrize("order", ["", *custom_generate.ORDERS])
def test_gaps_are_filled_in(filler, masked, order):
    for theirs in (filler[1], masked[1]):
        if theirs.masked and order == "speculative":
            with pytest.raises(ValueError, match="order"):
                theirs.generate(GAPS, order=order)
            continue
        full, again = (theirs.generate(GAPS, order=order, generator=seeded(3)) for _ in range(2))
        assert torch.equal(full, again) and ((full >= 0) & (full < VOCAB)).all()
        assert torch.equal(full[GAPS >= 0], GAPS[GAPS >= 0])


def test_gaps_are_filled_in_by_default_as_the_run_was_trained(filler, monkeypatch):
    _, theirs, *_ = filler
    for trained, order in (("random", "speculative"), ("left_to_right", "left_to_right")):
        monkeypatch.setattr(theirs.trunk, "fills", trained)
        by_default = theirs.generate(GAPS, generator=seeded(3))
        assert torch.equal(by_default, theirs.generate(GAPS, order=order, generator=seeded(3)))
    monkeypatch.setattr(theirs.trunk, "fills", "fractal")
    with pytest.raises(ValueError, match="fractal"):
        theirs.generate(GAPS)


def test_text_without_gaps_goes_on_as_ever(filler):
    _, theirs, *_ = filler
    ids, how = texts(2, 5), dict(do_sample=False, max_new_tokens=4)
    want = GenerationMixin.generate(theirs, input_ids=ids, attention_mask=ones(ids), **how)
    assert torch.equal(theirs.generate(ids, **how), want)
    assert torch.equal(theirs.generate(inputs=ids, **how), want)
    with pytest.raises(ValueError, match="gaps"):
        theirs.generate(GAPS, **how)


def test_padding_beside_a_gap_is_not_read(filler):
    _, theirs, *_ = filler
    alone = theirs.generate(GAPS[:1], generator=seeded(3))
    padded, mask = pad(GAPS[:1], (2, 0), value=VOCAB), pad(ones(GAPS[:1]), (2, 0))
    together = theirs.generate(padded, attention_mask=mask, generator=seeded(3))
    assert torch.equal(together[:, 2:], alone) and (together[:, :2] == VOCAB).all()


@torch.no_grad()
def test_what_it_says_of_gaps_is_what_the_model_says(filler, masked):
    """Each gap is the last place of a path of its own, and of masked diffusion any place of the block."""
    text, known, asked = GAPS[0], torch.tensor([0, 2, 5]), torch.tensor([4, 1, 3])
    drafted = torch.tensor([9, 8, 6])
    _, theirs, ours, draws = filler
    for tokens in (None, drafted):
        got = custom_generate.ask(theirs, text, known, asked, tokens)
        for i in range(3):
            before = 0 if tokens is None else i
            read = torch.cat((torch.tensor([VOCAB]), text[known], drafted[:before]))
            stand = torch.cat((torch.tensor([16]), known, asked[:before]))
            places = torch.stack((stand, torch.cat((stand[1:], asked[i : i + 1]))), -1)
            want = ours.head.log_probs(ours.trunk(read[None], places[None])[0, -1:], draws)
            torch.testing.assert_close(got[i], want[0].double().exp(), atol=1e-6, rtol=1e-4)
    _, theirs, ours, draws = masked
    block = torch.full((16,), VOCAB)
    block[known] = text[known]
    want = ours.head.log_probs(ours.trunk(block[None])[0, asked], draws).double().exp()
    got = custom_generate.ask(theirs, text, known, asked)
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-4)


@pytest.mark.slow
@torch.no_grad()
def test_bursts_have_the_distribution_of_a_token_a_pass(monkeypatch):
    """A mixture over both orders of two gaps, summed up."""
    run = dict(vocab_size=4, block_size=3, n_layer=1, n_head=1, n_embd=8, head="softmax", head_args={})
    run |= dict(trunk="any_order", dropout=0.0, gain=2.0)
    torch.manual_seed(0)
    model = NanoHeadsForCausalLM(NanoHeadsConfig(run, vocab_size=4))
    for p in model.parameters():
        p.add_(torch.randn_like(p), alpha=0.3)
    text, known = torch.tensor([-1, 2, -1]), torch.tensor([1])
    want = torch.zeros(4, 4, dtype=torch.float64)
    for a, b in ((0, 2), (2, 0)):
        first = custom_generate.ask(model, text, known, torch.tensor([a]))[0]
        for token in range(4):
            asked, drafted = torch.tensor([a, b]), torch.tensor([token, 0])
            then = custom_generate.ask(model, text, known, asked, drafted)[1]
            joint = first[token] * then / 2
            want[token] += joint if a == 0 else 0
            want[:, token] += joint if a == 2 else 0
    alone = custom_generate.ask(model, text, known, torch.tensor([0, 2]))
    assert (want - alone[0][:, None] * alone[1]).abs().sum() > 0.1  # a burst without a check would show
    kept, ask = {}, custom_generate.ask

    def asked_once(model, text, *places):  # few things are known, and each is asked thousands of times
        key = str([text.tolist(), *(None if at is None else at.tolist() for at in places)])
        if key not in kept:
            kept[key] = ask(model, text, *places)
        return kept[key]

    monkeypatch.setattr(custom_generate, "ask", asked_once)
    for order in ("speculative", "random"):
        full = custom_generate.generate(text.expand(3000, 3), model, order, seeded(1))
        counts = torch.bincount(full[:, 0] * 4 + full[:, 2], minlength=16).double()
        assert chisquare(counts, 3000 * want.flatten() / want.sum()).pvalue > 1e-3


@torch.no_grad()
def test_masked_diffusion_is_a_language_model_from_left_to_right(masked):
    """The logits of a place are the model's there, given the text before it in an empty block."""
    folder, theirs, ours, draws = masked
    assert theirs.config.max_position_embeddings == 15
    assert AutoTokenizer.from_pretrained(folder).model_max_length == 15
    x = texts(2, 15)
    got = theirs(x)
    assert got.logits.shape == (2, 15, VOCAB) and theirs(x, use_cache=True)[1:] == ()
    for n in range(15):
        block = torch.full((2, 16), VOCAB)
        block[:, : n + 1] = x[:, : n + 1]
        want = ours.head.log_probs(ours.trunk(block)[:, n + 1], draws)
        torch.testing.assert_close(got.logits[:, n].exp(), want.exp(), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(theirs(x, logits_to_keep=2).logits, got.logits[:, -2:])
    left = theirs(pad(x[:, :9], (3, 0), value=VOCAB), attention_mask=pad(ones(x[:, :9]), (3, 0)))
    torch.testing.assert_close(left.logits[:, 3:], got.logits[:, :9])
    text = theirs.generate(x[:, :5], attention_mask=ones(x[:, :5]), do_sample=False, max_new_tokens=4)
    for n in range(5, 9):
        assert torch.equal(text[:, n], theirs(text[:, :n]).logits[:, -1].argmax(1))
