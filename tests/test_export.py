"""A run as a transformers folder: what GPT2LMHeadModel computes and writes from it is what we do."""

import copy

import pytest
import torch
from conftest import VOCAB

import export
from data.prepared import tokenizer_of
from runtime.checkpoint import load_model
from sample import generate

LENGTH = 12  # after a prompt of 4: transformers' GPT-2 has no window that moves on


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "gpt2"
    assert export.main([str(trained), str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def theirs(folder):
    from transformers import GPT2LMHeadModel

    return GPT2LMHeadModel.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def ours(trained):
    return load_model(trained)[0]


def prompts() -> torch.Tensor:
    """Every token begins one of them."""
    others = torch.randint(VOCAB, (VOCAB, 3), generator=torch.Generator().manual_seed(0))
    return torch.cat((torch.arange(VOCAB)[:, None], others), 1)


@torch.no_grad()
def test_its_logits_are_ours(theirs, ours):
    x = torch.randint(VOCAB, (5, 16), generator=torch.Generator().manual_seed(1))
    logits = ours.trunk(x) @ ours.head.projection.weight[:VOCAB].t()
    torch.testing.assert_close(theirs(x).logits, logits, atol=1e-5, rtol=0)
    log_p = ours.head.log_probs(ours.trunk(x).flatten(0, 1), ours.head.draws(1, 0))
    torch.testing.assert_close(theirs(x).logits.log_softmax(-1).flatten(0, 1), log_p, atol=1e-5, rtol=0)


def test_its_greedy_text_is_ours(theirs, ours):
    """After any token, for as long as asked: an ordinary token must not end the text."""
    x = prompts()
    greedy = generate(ours, x, LENGTH, ours.head.draws(1, 0), temperature=0)
    want = torch.stack([token for token, _ in greedy], 1)
    got = theirs.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=LENGTH, do_sample=False)
    assert torch.equal(got, torch.cat((x, want), 1))
    assert len(set(want.flatten().tolist())) > 5  # not one token over and over


@torch.no_grad()
@pytest.mark.parametrize("token", [0, VOCAB - 1])
def test_no_token_of_a_small_vocabulary_ends_a_text(theirs, token):
    """A model that is sure of one token writes it to the end."""
    sure = copy.deepcopy(theirs)
    sure.transformer.ln_f.weight.zero_()
    sure.transformer.ln_f.bias.fill_(1.0)  # the last hidden state
    sure.transformer.wte.weight[token] = 10.0
    prompt = torch.tensor([[1, 2]])
    got = sure.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=5, do_sample=False)
    assert got[0].tolist() == [1, 2] + [token] * 5


def test_its_tokenizer_is_ours(folder, trained):
    from transformers import PreTrainedTokenizerFast

    mine = tokenizer_of(load_model(trained)[1])
    them = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    text = "the other one,\n ünï <|endoftext|>"
    assert them.encode(text) == list(mine.encode(text)) and them.decode(mine.encode(text)) == text


def test_another_order_is_refused(run, tiny, tmp_path):
    c = tiny(order="random")
    assert run(c) == 0
    with pytest.raises(ValueError, match="in the order 'random': a GPT2LMHeadModel reads from left to right"):
        export.export(c.out_dir, tmp_path / "new")
