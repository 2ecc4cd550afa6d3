"""A run as a transformers folder: what transformers computes and writes from it is what we do."""

import ast
import base64
import copy
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiktoken
import torch
from conftest import VOCAB, synthetic_text
from safetensors import SafetensorError
from scipy.stats import chisquare
from transformers import DynamicCache

import export
import sample
from data.prepared import load_tokenizer, tokenizer_of
from data.tokenizers import (
    BPETokenizer,
    GPT2Tokenizer,
    WordTokenizer,
    byte_level,
    byte_vocab,
    ids_of,
    read_tokenizer,
)
from evaluation.any_order import FREE, reader_of
from evaluation.decoding import Decoding, Penalties
from evaluation.filling import surest_first
from evaluation.metrics import bits_per_byte, perplexity
from evaluation.scoring import score
from evaluation.settings import run_seed
from evaluation.truncation import penalised, truncate
from measures import card
from measures.store import Store
from model import build
from runtime import custom_generate
from runtime.checkpoint import load_model, save, weights_digest
from runtime.errors import UserError
from runtime.modeling_nanoheads import NanoHeadsConfig, NanoHeadsForCausalLM
from sample import generate

LENGTH = 12  # after a prompt of 4: transformers' GPT-2 has no window that moves on


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "gpt2"
    assert export.main([str(trained), str(folder)]) == 0
    with pytest.raises(UserError, match="exists"):
        export.export(trained, folder)
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


def test_its_greedy_text_is_ours(theirs, ours):
    """After any token, for as long as asked: an ordinary token must not end the text."""
    x = prompts()
    greedy = generate(ours, x, LENGTH, ours.head.draws(1, 0), Decoding(temperature=0))
    want = torch.stack([token for token, _ in greedy], 1)
    got = theirs.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=LENGTH, do_sample=False)
    assert torch.equal(got, torch.cat((x, want), 1))
    assert len(set(want.flatten().tolist())) > 5  # not one token over and over


@torch.no_grad()
def test_the_gain_goes_into_the_last_layer_norm(token_folder, tmp_path):
    from transformers import GPT2LMHeadModel

    write_run(tmp_path / "run", token_folder, head="softmax", gain=3.0)
    export.export(tmp_path / "run", tmp_path / "gpt2")
    x = texts(2, 9)
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path / "gpt2")(x).logits.log_softmax(-1)
    torch.testing.assert_close(load_model(tmp_path / "run")[0].log_probs(x), theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", [OSError, SafetensorError])
def test_an_export_onto_a_full_disk_leaves_nothing(trained, tmp_path, monkeypatch, kind):
    def full(model, folder, end, pad):
        (folder / "config.json").write_text("{}")
        raise kind(28, "No space left on device")

    monkeypatch.setattr(export, "to_gpt2", full)
    with pytest.raises(OSError, match="could not write.*No space left on device"):
        export.export(trained, tmp_path / "gpt2")
    assert not list(tmp_path.iterdir())


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


def test_the_tokenizer_of_gpt2s_folder_is_ours(folder, trained):
    from transformers import AutoTokenizer

    mine, theirs = tokenizer_of(load_model(trained)[1]), AutoTokenizer.from_pretrained(folder)
    text = "the other one,\n ünï <|endoftext|>"
    assert theirs.encode(text) == list(mine.encode(text)) and theirs.decode(mine.encode(text)) == text
    assert theirs.eos_token_id is None and theirs.bos_token_id is None
    assert len(theirs) == VOCAB  # no id without an embedding


def test_gpt2s_folder_takes_texts_in_batches(folder, theirs, trained):
    """It pads with a byte that no text has: what is written after a text is the same beside a longer one."""
    from transformers import AutoTokenizer

    mine, tokenizer = tokenizer_of(load_model(trained)[1]), AutoTokenizer.from_pretrained(folder)
    assert theirs.generation_config.pad_token_id == tokenizer.pad_token_id < VOCAB
    assert mine.decode([tokenizer.pad_token_id]) == "\ufffd" and tokenizer.padding_side == "left"
    assert tokenizer.encode("\u00ff the") == mine.encode("\u00ff the")
    texts, how = ["the o", "a"], dict(max_new_tokens=5, do_sample=False)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    assert batch["attention_mask"][1].sum() < batch["attention_mask"].shape[1]
    together = theirs.generate(**batch, **how)[:, -5:]
    alone = [theirs.generate(**tokenizer(t, return_tensors="pt"), **how)[0, -5:] for t in texts]
    assert torch.equal(together, torch.stack(alone))


def test_a_padding_token_is_one_that_no_text_has(tmp_path):
    model = byte_level(byte_vocab())
    assert export.unused_token(BPETokenizer(model)) == "\u00ff"
    model.add_special_tokens(["<s>", "[PAD]"])
    model.save(str(tmp_path / "tokenizer.json"))
    assert export.unused_token(read_tokenizer(tmp_path / "tokenizer.json")) == "[PAD]"
    assert export.unused_token(GPT2Tokenizer()) == "<|endoftext|>"
    assert export.id_of("<|endoftext|>", GPT2Tokenizer()) == 50256
    assert export.unused_token(WordTokenizer.of(["a", "b"])) == ""


# -----------------------------------------------------------------------------
# Any other run: with code of its own

ROWS = {
    "sigmoid": dict(head="sigmoid", tied=False),
    "taylor": dict(head="taylor", gain=10.0),
    "entmax15": dict(head="entmax15", gain=2.0),  # exact zeros
    "perturb_max": dict(head="perturb_max", learn_gain=True, gain=3.0),
    "am_softmax": dict(head="am_softmax", gain=2.0),
    "bayesian": dict(head="sigsoftmax", bayesian=True, prior_sigma=0.1, gain=4.0),
    "harmonic": dict(head="harmonic", tied=False),
    "multi_token": dict(head="sigmoid", auxiliary="multi_token"),  # which does not go along
    "modern": dict(head="softmax", trunk="modern", tied=False, gain=3.0),
    "random": dict(head="softmax", order="random", sinusoidal=True, gain=4.0),
    "fractal, bayesian": dict(head="am_softmax", order="fractal", bayesian=True),
}
DRAWS, SEED = 3, 7


@pytest.fixture(scope="module", autouse=True)
def cache_of_code(tmp_path_factory):
    """transformers copies the code of a folder before it imports it: not into the user's cache."""
    from transformers import dynamic_module_utils

    before = list(sys.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        yield
    sys.path[:] = before


def write_run(run: Path, tokens: Path, **changes) -> None:
    """A checkpoint of a model that nobody trained."""
    tokenizer = load_tokenizer(tokens)
    sizes = dict(vocab_size=tokenizer.vocab_size, block_size=16, n_layer=2, n_head=2, n_embd=32, dropout=0.1)
    config = dict(name="x", tokenizer=tokenizer.name, tokenizer_fingerprint=tokenizer.fingerprint) | sizes
    config |= dict(head_args={}, bayesian=False, prior_sigma=0.02, dataset="wikitext103") | changes
    torch.manual_seed(0)
    model = build(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.05)
    save(run / "best", model, config, {"step": 1, "val_nll": None}, None, tokenizer)


def loaded(folder: Path):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


@pytest.fixture(scope="module", params=ROWS)
def row(request, token_folder, tmp_path_factory):
    """(folder, the model there, ours, our draws of its weights)"""
    at = tmp_path_factory.mktemp("row")
    write_run(at / "run", token_folder, **ROWS[request.param])
    assert export.main([str(at / "run"), str(at / "hf"), f"--samples={DRAWS}", f"--seed={SEED}"]) == 0
    ours, ckpt = load_model(at / "run")
    return at / "hf", loaded(at / "hf"), ours, ours.head.draws(DRAWS, run_seed(SEED, ckpt.config))


def texts(count: int, length: int) -> torch.Tensor:
    return torch.randint(VOCAB, (count, length), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def test_logits_are_our_log_probs(row):
    _, theirs, ours, draws = row
    x = texts(3, ours.trunk.context)
    got = theirs(x, labels=x)
    want = ours.log_probs(x, draws)
    torch.testing.assert_close(got.logits.exp(), want.exp(), atol=1e-6, rtol=1e-4)
    assert theirs(x, logits_to_keep=2).logits.shape == (3, 2, VOCAB) and got.logits.dtype == torch.float32
    torch.testing.assert_close(got.loss, -want[:, :-1].gather(2, x[:, 1:, None]).mean())
    with pytest.raises(ValueError, match=f"tokens do not fit the {ours.trunk.context}"):
        theirs(texts(1, 17))


@torch.no_grad()
def test_sample_draws_the_weights_of_the_folder(row, monkeypatch):
    """For the same options, from left to right and, where the model can, at free places."""
    folder, _, ours, stored = row
    seen = []
    monkeypatch.setattr(sample, "write_samples", lambda *args: seen.append(args[4]))
    monkeypatch.setattr(sample, "reader_of", lambda *args: seen.append(args[2]))
    options = [f"--samples={DRAWS}", f"--seed={SEED}", "--device=cpu", "--dtype=float32", "--length=2"]
    argv = [str(folder.with_name("run")), *options]
    for more in ([], ["--order=random"])[: 1 + (ours.trunk.config.order == "any")]:
        with suppress(AttributeError):  # there is no reader
            assert sample.main([*argv, *more]) == 0
    assert len(seen) == 1 + (ours.trunk.config.order == "any")
    for draws in seen:
        assert all(torch.equal(a.weight, b.weight) for a, b in zip(draws, stored, strict=True))


@torch.no_grad()
def test_cached_and_padded_texts_have_the_same_distributions(row):
    """Padding of an id that the vocabulary does not have."""
    _, theirs, ours, draws = row
    x = texts(3, 9)
    want = ours.log_probs(x, draws).exp()
    half = theirs(x[:, :5], use_cache=True)
    rest = theirs(x[:, 5:], past_key_values=half.past_key_values)
    torch.testing.assert_close(torch.cat((half.logits, rest.logits), 1).exp(), want, atol=1e-5, rtol=1e-3)
    padded = torch.cat((torch.full((3, 4), VOCAB), x), 1)
    mask = (torch.arange(13) >= 4).long().expand(3, 13)
    left = theirs(padded, attention_mask=mask).logits[:, 4:]
    torch.testing.assert_close(left.exp(), want, atol=1e-5, rtol=1e-3)
    how = dict(max_new_tokens=6, do_sample=False)
    plain = theirs.generate(x, attention_mask=torch.ones_like(x), use_cache=False, **how)
    assert torch.equal(theirs.generate(x, attention_mask=torch.ones_like(x), use_cache=True, **how), plain)
    assert torch.equal(theirs.generate(padded, attention_mask=mask, **how)[:, 4:], plain)


@torch.no_grad()
def test_generate_samples_from_our_distribution(row):
    _, theirs, ours, draws = row
    x, count = texts(1, 4), 6000
    p = ours.log_probs(x, draws)[0, -1].double().exp()
    torch.manual_seed(3)
    many = x.expand(count, 4)
    got = theirs.generate(
        many, attention_mask=torch.ones_like(many), max_new_tokens=1, do_sample=True, top_k=0
    )
    observed = torch.bincount(got[:, -1], minlength=VOCAB).double()
    assert not observed[p == 0].any()
    often = p * count >= 5
    bins = [torch.cat((t[often], t[~often].sum()[None])) for t in (observed, p / p.sum() * count)]
    kept = bins[1] > 0
    assert kept.sum() > 5
    assert chisquare(*(b[kept].numpy() for b in bins)).pvalue > 1e-3


CUTS = [
    dict(top_k=5),
    dict(top_p=0.8),
    dict(min_p=0.5),
    dict(typical_p=0.5),
    dict(epsilon=0.02),
    dict(eta=0.5),
]
CUTS += [dict(temperature=1.5, top_k=50, top_p=0.9, min_p=0.05, typical_p=0.9, epsilon=0.004, eta=0.4)]
NAMES = {"epsilon": "epsilon_cutoff", "eta": "eta_cutoff", "no_repeat_ngram": "no_repeat_ngram_size"}


def drawn_from(model, x: torch.Tensor, **how) -> torch.Tensor:
    """The distributions (N, V) that transformers draws the next tokens from, after its own processors."""
    flags = {"temperature": 1.0, "top_k": 0} | {NAMES.get(k, k): v for k, v in how.items()}
    flags |= dict(do_sample=True, max_new_tokens=1, output_scores=True, return_dict_in_generate=True)
    return model.generate(x, attention_mask=torch.ones_like(x), **flags).scores[0].softmax(1)


@torch.no_grad()
def test_generate_cuts_and_penalises_as_sample_does(row):
    _, theirs, ours, draws = row
    x = texts(4, 6)
    log_p = ours.log_probs(x, draws)[:, -1]
    for how in CUTS:
        want = truncate(log_p, Decoding(**how))
        torch.testing.assert_close(drawn_from(theirs, x, **how), want, atol=1e-6, rtol=1e-4)
        assert (want == 0).any()
    penalties = dict(repetition_penalty=1.5, no_repeat_ngram=1)
    want = truncate(penalised(log_p, x, 0, Penalties(**penalties)), Decoding(min_p=0.3))
    torch.testing.assert_close(drawn_from(theirs, x, min_p=0.3, **penalties), want, atol=1e-6, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("how", CUTS, ids=str)
def test_a_gpt2_cuts_as_sample_does(ours, theirs, how):
    x = prompts()
    log_p = ours.log_probs(x, ours.head.draws(1, 0))[:, -1]
    got, want = drawn_from(theirs, x, **how), truncate(log_p, Decoding(**how))
    # of so many texts one may have a cut's edge between two tokens that float32 cannot tell apart
    edge = ((got > 0) != (want > 0)).sum(1)
    assert edge.count_nonzero() <= len(x) // 100 and edge.max() <= 2
    torch.testing.assert_close(got[edge == 0], want[edge == 0], atol=1e-6, rtol=1e-4)


@torch.no_grad()
def test_what_transformers_saves_loads_again(row, tmp_path):
    folder, theirs, _, _ = row
    theirs.save_pretrained(tmp_path / "again")
    x = texts(2, 8)
    assert torch.equal(loaded(tmp_path / "again")(x).logits, theirs(x).logits)
    assert {p.name for p in folder.glob("*.py")} == {p.name for p in (tmp_path / "again").glob("*.py")}


def test_gradients_flow(row):
    if row[2].head.head.sparse:
        pytest.skip("the log of an exact zero has no gradient")
    theirs, x = copy.deepcopy(row[1]).train(), texts(2, 8)
    theirs(x, labels=x).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in theirs.parameters())


def test_the_code_imports_itself_and_nothing_that_is_not_there(row):
    """As transformers checks it on the hub: every import outside of a `try`."""
    from transformers.dynamic_module_utils import get_imports, get_relative_import_files

    folder = row[0]
    files = {path.name for path in folder.glob("*.py")}
    needed = get_relative_import_files(folder / "modeling_nanoheads.py")
    assert {Path(f).name for f in needed} | {"modeling_nanoheads.py"} == files
    imported = {name for path in folder.glob("*.py") for name in get_imports(path)}
    assert imported - set(sys.stdlib_module_names) == {"torch", "numpy", "transformers"}
    assert not any(
        isinstance(node, ast.ImportFrom) and node.level and node.module is None
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    )


def test_its_tokenizer_is_ours(row, token_folder):
    from transformers import AutoTokenizer

    mine = load_tokenizer(token_folder)
    theirs = AutoTokenizer.from_pretrained(row[0], trust_remote_code=True)
    text = "the other one,\n ünï <|endoftext|> <|pad|>"
    assert theirs.encode(text) == list(mine.encode(text)) and theirs.decode(mine.encode(text)) == text
    assert theirs.eos_token_id is None and theirs.model_max_length == row[2].trunk.context
    batch = theirs([text, "the"], padding=True, return_tensors="pt")
    assert batch["input_ids"][1, 0] == VOCAB and batch["attention_mask"][1, 0] == 0  # on the left


def test_words_are_written_as_we_write_them():
    words = WordTokenizer.of(["\n", "a", "class", "##b"])
    theirs = export.tokenizer_for_transformers(words, 16, export.PAD)
    ids = [0, 1, 2, 0, 0, 3, 1, 3]
    assert theirs.decode(ids) == words.decode(ids) == "\na class\n\n##b a ##b"
    assert theirs.encode("a class\n ##b") == [1, 2, 0, 3]
    assert theirs.eos_token_id is None


def test_gpt2s_tokenizer_goes_along():
    """With a few merges, for GPT-2's files are not everywhere."""
    merges = [b"th", b"the", b" t", b" the", b"er", b"\n\n"]
    ranks = {bytes([i]): i for i in range(256)} | {token: 256 + i for i, token in enumerate(merges)}
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    end = {"<|endoftext|>": 262}
    mine = GPT2Tokenizer()
    vars(mine)["_encoding"] = tiktoken.Encoding(
        "few", pat_str=pattern, mergeable_ranks=ranks, special_tokens=end
    )
    theirs = export.tokenizer_for_transformers(mine, 16, export.PAD)
    text = "the other, there's  three\n\n\n the ünï 12 <|endoftext|> \n"
    ids = ids_of(text, mine)
    assert theirs.encode(text) == ids != mine.encode(text) and theirs.decode(ids) == text
    assert (theirs.eos_token_id, theirs.bos_token_id, theirs.pad_token_id) == (262, 262, 263)


def test_the_card_says_what_it_is(row, token_folder, tmp_path, monkeypatch):
    text = (row[0] / "README.md").read_text()
    assert "license: cc-by-sa-3.0" in text and "trust_remote_code=True" in text and "PPL" not in text
    write_run(tmp_path / "run", token_folder, head="softmax", dataset="text", order="random", bayesian=True)
    measured = {"measure": "text", "definition": 1, "settings": {}, "name": "run", "ppl_tok": 12.345}
    measured["weights_sha256"] = weights_digest(tmp_path / "run" / "best")
    Store(tmp_path / "results" / "one.jsonl").put([measured])
    (tmp_path / "results" / "of_another_program.jsonl").write_text('{"text": "a b c"}\n')
    monkeypatch.setattr(card, "WORK", tmp_path)
    export.export(tmp_path / "run", tmp_path / "hf")
    text = (tmp_path / "hf" / "README.md").read_text()
    assert "| PPL_tok | 12.35 |" in text or "| PPL_tok | 12.34 |" in text
    assert "As measured in results/one.jsonl, on" in text and "license" not in text.split("---")[1]
    assert "8 draws" in text and "the order `random`" in text


@pytest.mark.parametrize(
    "beside, step, says",
    [
        ({}, 100, "split is 20.09."),
        ({"eval_windows": 4}, 100, ""),  # of a part of the split
        ({"eval_windows": 4}, 200, "split is 20.09."),
        ({"order": "random"}, 200, ""),  # in an order in which the folder's model is not asked
    ],
)
def test_a_card_has_a_perplexity_of_the_whole_split_from_left_to_right_alone(beside, step, says):
    ckpt = SimpleNamespace(config={"max_steps": 200, **beside}, progress={"step": step, "val_nll": 3.0})
    assert card.progress(ckpt).partition("validation ")[2] == says


# -----------------------------------------------------------------------------
# lm-evaluation-harness

TASK = Path(export.CODE) / "docs" / "lm_eval"


@pytest.fixture
def original(tmp_path):
    """A file in the form of WikiText-103's."""
    path = tmp_path / "wiki.test.tokens"
    path.write_text(" \n = Title = \n \n" + synthetic_text(8, 5), encoding="utf-8", newline="\n")
    return path


def test_the_task_counts_words_and_bytes_as_we_do(original, tmp_path):
    spec = importlib.util.spec_from_file_location("wikitext103_task", TASK / "wikitext103.py")
    task = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(task)
    text = original.read_text(encoding="utf-8")
    doc = task.dataset(str(original), version=1.0)["test"][0]
    assert doc["text"] == text[2:] and doc["bytes"] == len(text.encode())
    assert doc["words"] == 3 + 8 * 10 + 3 + 8  # of the title, of the lines; a word for each line end
    assert task.process_results(doc, (-5.0,))["bits_per_byte"] == (-5.0, doc["bytes"])
    other = tmp_path / "other.txt"
    other.write_text("words")
    with pytest.raises(ValueError, match="does not begin with a blank line"):
        task.dataset(str(other))


def harness(folder, original, prefix):
    """What lm-evaluation-harness says of an exported model and the file `original`."""
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.tasks import TaskManager

    done = lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained={folder},trust_remote_code=True,prefix_token_id={prefix}",
        tasks=["nanoheads_wikitext103"],
        task_manager=TaskManager(include_path=str(TASK), metadata={"file": str(original)}),
        device="cpu",
        batch_size=4,
        metadata={"file": str(original)},
    )
    return done["results"]["nanoheads_wikitext103"]


def in_blocks(model, ids):
    """NLL in nats of ids[1:] (n,) under masked diffusion from left to right: each block begins with the last
    token of the one before, and the last one goes back as far as it can."""
    size, total = model.trunk.context, 0.0
    for start in range(0, len(ids) - 1, size - 1):
        end = min(start + size, len(ids))
        block = torch.tensor(ids[max(0, end - size) : end])[None]
        gaps = block.clone()
        gaps[:, start + 1 - end :] = FREE
        reader = reader_of(model, gaps, model.head.draws(1, SEED))
        total -= float(surest_first(reader, "left to right", target=block).log_p)
    return total


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sigmoid", "random", "masked"])
def test_the_harness_scores_what_we_score(token_folder, tmp_path, original, name):
    write_run(tmp_path / "run", token_folder, **ROWS.get(name, {"head": "softmax", "order": name}))
    export.export(tmp_path / "run", tmp_path / "hf")
    text = original.read_text(encoding="utf-8")
    tokenizer, blank = load_tokenizer(token_folder), " \n"
    prefix = tokenizer.encode(blank)[-1]
    got = harness(tmp_path / "hf", original, prefix)
    ours = load_model(tmp_path / "run")[0]
    ids = np.array([prefix, *tokenizer.encode(text.removeprefix(blank))])
    nll = in_blocks(ours, ids) if name == "masked" else score(ours, ids).nll
    assert got["bits_per_byte,none"] == pytest.approx(bits_per_byte(nll, len(text.encode())), rel=1e-6)
    words = len(text.split()) + text.count("\n")
    assert got["word_perplexity,none"] == pytest.approx(perplexity(nll, words), rel=1e-6)


# -----------------------------------------------------------------------------

ELSEWHERE = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
for name in ("model", "heads", "runtime", "data", "evaluation"):
    try:
        __import__(name)
    except ImportError:
        continue
    sys.exit(f"{name} is here")
for folder in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    batch = tokenizer(["the other", "one"], padding=True, return_tensors="pt")
    out = model.generate(**batch, max_new_tokens=5, do_sample=True)
    assert out.shape[1] == batch["input_ids"].shape[1] + 5 and tokenizer.batch_decode(out)
    print(model(torch.tensor([[1, 2, 3]])).logits.flatten().tolist())
"""


@pytest.mark.slow
def test_it_runs_where_nanoheads_is_not(token_folder, tmp_path):
    folders, want = [], []
    for name in ("bayesian", "entmax15", "random"):
        write_run(tmp_path / name / "run", token_folder, **ROWS[name])
        export.export(tmp_path / name / "run", tmp_path / name / "hf", DRAWS, SEED)
        ours, ckpt = load_model(tmp_path / name / "run")
        draws = ours.head.draws(DRAWS, run_seed(SEED, ckpt.config))
        want.append(ours.log_probs(torch.tensor([[1, 2, 3]]), draws).flatten())
        shutil.rmtree(tmp_path / name / "run")
        folders.append(str(tmp_path / name / "hf"))
    (tmp_path / "empty").mkdir()
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, *folders],
        cwd=tmp_path / "empty",
        env=kept | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for line, log_p in zip(done.stdout.strip().splitlines(), want, strict=True):
        got = torch.tensor(json.loads(line.replace("-inf", "-Infinity")))
        torch.testing.assert_close(got.exp(), log_p.exp(), atol=1e-6, rtol=1e-4)


# -----------------------------------------------------------------------------
# Gaps

GAPS = torch.tensor([[5, -1, 7, -1, -1, 2], [-1, -1, -1, -1, -1, -1], [1, 2, 3, 4, 5, -1]])


@pytest.fixture(scope="module")
def filler(token_folder, tmp_path_factory):
    """(a folder of a model of any order, the model there, ours)"""
    at = tmp_path_factory.mktemp("filler")
    write_run(at / "run", token_folder, **ROWS["random"])
    export.export(at / "run", at / "hf")
    return at / "hf", loaded(at / "hf"), load_model(at / "run")[0]


@pytest.mark.parametrize("order", custom_generate.ORDERS)
def test_gaps_are_filled_in(filler, order):
    _, theirs, _ = filler
    full, again = (theirs.generate(GAPS, order=order, generator=seeded(3)) for _ in range(2))
    assert torch.equal(full, again) and ((full >= 0) & (full < VOCAB)).all()
    assert torch.equal(full[GAPS >= 0], GAPS[GAPS >= 0])


def test_what_only_gaps_take_is_refused_without_gaps(filler, monkeypatch):
    _, theirs, ours = filler
    ids = GAPS.clamp(min=0)[:, :3]
    named, plain = theirs.generate(inputs=ids, max_new_tokens=2), theirs.generate(ids, max_new_tokens=2)
    assert torch.equal(named, plain)
    for more in (dict(generator=seeded(0)), dict(order="confidence")):
        with pytest.raises(ValueError, match="order and generator are for a text with gaps"):
            theirs.generate(ids, max_new_tokens=2, **more)
    with pytest.raises(ValueError, match="20 tokens do not fit the 16"):
        theirs.generate(torch.full((1, 20), -1))
    monkeypatch.setitem(theirs.config.run, "order", "fractal")
    with pytest.raises(ValueError, match="'fractal'.*takes an order of"):
        theirs.generate(GAPS)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("trained, order", [("random", "speculative"), ("blocks_4", "left_to_right")])
def test_gaps_are_filled_in_by_default_as_the_run_was_trained(filler, monkeypatch, trained, order):
    _, theirs, _ = filler
    monkeypatch.setitem(theirs.config.run, "order", trained)
    by_default = theirs.generate(GAPS, generator=seeded(3))
    assert torch.equal(by_default, theirs.generate(GAPS, order=order, generator=seeded(3)))


def test_padding_beside_a_gap_is_not_read(filler):
    _, theirs, _ = filler
    alone = theirs.generate(GAPS[:1], generator=seeded(3))
    padded, mask = (
        torch.nn.functional.pad(t, (2, 0), value=v) for t, v in ((GAPS[:1], VOCAB), (GAPS[:1] * 0 + 1, 0))
    )
    together = theirs.generate(padded, attention_mask=mask, generator=seeded(3))
    assert torch.equal(together[:, 2:], alone) and (together[:, :2] == VOCAB).all()


@torch.no_grad()
def test_what_it_says_of_gaps_is_what_our_reader_says(filler):
    _, theirs, ours = filler
    text, asked, drafted = GAPS[:1], torch.tensor([4, 1, 3]), torch.tensor([9, 8, 6])
    reader, places = reader_of(ours, text, ours.head.draws(1, 0)), torch.tensor([0, 2, 5])
    for tokens, theirs_to_ask in ((None, None), (drafted[None], drafted)):
        said = reader.each(asked[None]) if tokens is None else reader.along(asked[None], tokens)
        want = torch.stack([said.row(torch.tensor([n]))[0] for n in range(3)])
        got = custom_generate.ask(theirs, text[0], places, asked, theirs_to_ask)
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-4)


@torch.no_grad()
def test_bursts_have_the_distribution_of_a_token_a_pass():
    """A mixture over both orders of two gaps, summed up."""
    run = dict(vocab_size=4, block_size=3, n_layer=1, n_head=1, n_embd=8, head="softmax", head_args={})
    run |= dict(order="random", dropout=0.0, gain=2.0)
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
    for order in ("speculative", "random"):
        full = custom_generate.generate(text.expand(3000, 3), model, order, seeded(1))
        counts = torch.bincount(full[:, 0] * 4 + full[:, 2], minlength=16).double()
        assert chisquare(counts, 3000 * want.flatten() / want.sum()).pvalue > 1e-3


def test_text_without_gaps_goes_on_as_ever(filler):
    from transformers import GenerationMixin

    _, theirs, _ = filler
    batch = {"input_ids": texts(2, 5), "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    want = GenerationMixin.generate(theirs, **batch, do_sample=False, max_new_tokens=4)
    assert torch.equal(theirs.generate(**batch, do_sample=False, max_new_tokens=4), want)
    with pytest.raises(ValueError, match="a text with gaps takes an order of"):
        theirs.generate(GAPS, max_new_tokens=4)


# ---- masked diffusion --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def masked(token_folder, tmp_path_factory):
    """(the model in a folder of masked diffusion, ours, our draws of its weights)"""
    at = tmp_path_factory.mktemp("masked")
    write_run(at / "run", token_folder, head="entmax15", gain=2.0, order="masked", bayesian=True)
    assert export.main([str(at / "run"), str(at / "hf"), f"--samples={DRAWS}", f"--seed={SEED}"]) == 0
    ours, ckpt = load_model(at / "run")
    return loaded(at / "hf"), ours, ours.head.draws(DRAWS, run_seed(SEED, ckpt.config))


@torch.no_grad()
def test_masked_diffusion_is_a_language_model_from_left_to_right(masked):
    """Whose probabilities are those of our sampler that fills the leftmost place first."""
    theirs, ours, draws = masked
    assert theirs.config.max_position_embeddings == 15
    saved = json.loads((Path(theirs.name_or_path) / "tokenizer_config.json").read_text())
    assert saved["model_max_length"] == 15
    x = texts(2, 15)
    got = theirs(x, labels=x)
    assert got.logits.shape == (2, 15, VOCAB) and got.past_key_values is None
    torch.testing.assert_close(got.logits.exp().sum(2), torch.ones(2, 15))
    free = torch.full_like(x, FREE)
    free[:, 0] = x[:, 0]
    c = reader_of(ours, free, draws)
    want = surest_first(c, "left to right", target=x).log_p
    assert want.isinf().any() == got.loss.isinf()
    torch.testing.assert_close(got.logits[:, :-1].gather(2, x[:, 1:, None]).sum((1, 2)).double(), want)
    torch.testing.assert_close(theirs(x, logits_to_keep=2).logits, got.logits[:, -2:])
    padded = torch.cat((torch.full((2, 3), VOCAB), x[:, :9]), 1)
    mask = (torch.arange(12) >= 3).long().expand(2, 12)
    torch.testing.assert_close(theirs(padded, attention_mask=mask).logits[:, 3:], got.logits[:, :9])
    with pytest.raises(ValueError, match="16 tokens do not fit the 15 that this model reads"):
        theirs(texts(1, 16))
    with pytest.raises(ValueError, match="give use_cache=False"):
        theirs(x, past_key_values=DynamicCache())


@torch.no_grad()
def test_masked_diffusion_generates_and_fills_in(masked):
    theirs, ours, draws = masked
    x = texts(2, 5)
    got = theirs.generate(x, attention_mask=torch.ones_like(x), do_sample=False, max_new_tokens=4)
    for n in range(5, 9):
        assert torch.equal(got[:, n], theirs(got[:, :n]).logits[:, -1].argmax(1))
    known, asked = torch.tensor([0, 2, 5]), torch.tensor([4, 1, 3])
    said = reader_of(ours, GAPS[:1], draws).each(asked[None])
    want = torch.stack([said.row(torch.tensor([n]))[0] for n in range(3)])
    torch.testing.assert_close(custom_generate.ask(theirs, GAPS[0], known, asked), want, atol=1e-6, rtol=1e-4)
    for order in ("", "left_to_right", "confidence"):
        full = theirs.generate(GAPS, order=order, generator=seeded(3))
        assert ((full >= 0) & (full < VOCAB)).all() and torch.equal(full[GAPS >= 0], GAPS[GAPS >= 0])
    with pytest.raises(ValueError, match="'speculative', {}: a text with gaps takes"):
        theirs.generate(GAPS, order="speculative")


def test_models_of_one_order_have_no_gaps(row):
    has = (row[0] / "custom_generate" / "generate.py").is_file()
    assert has == (row[2].trunk.config.order == "any")


# -----------------------------------------------------------------------------
# The hub


class Hub(ThreadingHTTPServer):
    """What of the hub's API takes a model, on this machine. `files` is what the last commit holds."""

    def __init__(self, refuses: int = 0):
        self.refuses, self.files, self.tokens, self.created = refuses, {}, set(), {}
        super().__init__(("127.0.0.1", 0), Taker)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Taker(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_):
        pass

    def do_POST(self):
        length = self.headers.get("Content-Length")
        body = self.rfile.read(int(length)) if length else b"".join(self.chunks())
        self.server.tokens.add(self.headers.get("Authorization"))
        if self.server.refuses:
            return self.answer({"error": "no room"}, self.server.refuses)
        if self.path == "/api/repos/create":
            self.server.created = json.loads(body)
            name = self.server.created["name"]
            return self.answer({"url": f"{self.server.address}/somebody/{name}"})
        if self.path.endswith("/preupload/main"):
            files = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in files]
            return self.answer({"files": modes})
        if self.path.endswith("/commit/main"):
            lines = map(json.loads, body.splitlines())
            files = [line["value"] for line in lines if line["key"] == "file"]
            self.server.files = {file["path"]: base64.b64decode(file["content"]) for file in files}
            url = f"{self.server.address}/somebody/model/commit/{'0' * 40}"
            return self.answer({"commitUrl": url, "commitOid": "0" * 40})
        return self.answer({})  # of the card's metadata, for one

    def do_GET(self):
        self.answer({"id": "somebody/model", "sha": "0" * 40, "siblings": []})

    do_HEAD = do_GET

    def chunks(self):
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()

    def answer(self, content, status=200):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def pushed(run, folder, hub, *flags):
    """`export.py --push` as a program, with this hub and a token."""
    kept = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    env = kept | {"HF_ENDPOINT": hub.address, "HF_TOKEN": "hf_secret", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "export.py", str(run), str(folder), "--push=somebody/model", *flags]
    return subprocess.run(command, cwd=export.CODE, env=env, capture_output=True, text=True, timeout=300)


def test_a_pushed_folder_is_on_the_hub(trained, tmp_path):
    hub = Hub()
    done = pushed(trained, tmp_path / "hf", hub, "--private")
    assert done.returncode == 0, done.stderr
    assert f"sent to {hub.address}/somebody/model" in done.stdout
    local = {
        p.relative_to(tmp_path / "hf").as_posix(): p for p in (tmp_path / "hf").rglob("*") if p.is_file()
    }
    assert {*hub.files} - {".gitattributes"} == local.keys() and "model.safetensors" in local
    assert all(hub.files[name] == path.read_bytes() for name, path in local.items())
    assert hub.tokens == {"Bearer hf_secret"}
    assert {"name": "model", "organization": "somebody"}.items() <= hub.created.items()
    assert hub.created.get("private") or hub.created.get("visibility") == "private"
    card_text = hub.files["README.md"].decode()
    assert 'AutoModelForCausalLM.from_pretrained("somebody/model")' in card_text
    assert re.search(r"validation split is \d+\.\d\d\.", card_text) and '"learning_rate": ' in card_text


def test_a_hub_that_refuses_leaves_the_folder(trained, tmp_path):
    done = pushed(trained, tmp_path / "hf", Hub(refuses=403))
    assert done.returncode == 2 and (tmp_path / "hf" / "config.json").is_file()
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert "did not take somebody/model" in line and f"hf upload somebody/model {tmp_path / 'hf'}" in line
    assert "hf_secret" not in done.stdout + done.stderr


def test_a_dry_run_sends_nothing(trained, tmp_path, capsys):
    assert export.main([str(trained), str(tmp_path / "hf"), "--push=somebody/model", "--dry_run"]) == 0
    out = capsys.readouterr().out
    assert "would send to https://huggingface.co/somebody/model:" in out
    size = (tmp_path / "hf" / "model.safetensors").stat().st_size
    assert f"{size:,} bytes  model.safetensors" in out and "library_name: transformers" in out


@pytest.mark.parametrize(
    "flags, says",
    [
        (["--push=somebody/model"], "run `hf auth login`, or set HF_TOKEN"),
        (["--push=model"], "push = 'model': give USER/NAME"),
        (["--dry_run"], "dry_run = True without --push"),
        (["--private"], "private = True without --push"),
    ],
)
def test_what_cannot_be_pushed_is_refused_before_any_work(trained, tmp_path, monkeypatch, flags, says):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(UserError, match=says):
        export.main([str(trained), str(tmp_path / "hf"), *flags])
    assert not (tmp_path / "hf").exists()
