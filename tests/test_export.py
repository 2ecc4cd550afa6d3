"""A run as a transformers folder: what transformers computes and writes from it is what we do."""

import base64
import copy
import json
import os
import re
import subprocess
import sys
import sysconfig
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiktoken
import torch
from safetensors import SafetensorError
from scipy.stats import chisquare
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, GenerationMixin, GPT2LMHeadModel

import export
from data.prepared import load_tokenizer
from data.tokenizers import (
    BPETokenizer,
    GPT2Tokenizer,
    WordTokenizer,
    byte_level,
    byte_vocab,
    ids_of,
    read_tokenizer,
)
from evaluation.decoding import Decoding
from evaluation.metrics import bits_per_byte, perplexity
from evaluation.scoring import score
from evaluation.settings import run_seed
from evaluation.truncation import truncate
from measures import card
from measures.store import Store
from model import build
from runtime import custom_generate
from runtime.checkpoint import load_model, save, weights_digest
from runtime.errors import UserError
from runtime.modeling_nanoheads import NanoHeadsConfig, NanoHeadsForCausalLM
from sample import generate
from tests.fixtures import VOCAB, synthetic_text

DRAWS, SEED = 3, 7
ROWS = {
    "plain": dict(head="softmax", gain=3.0),  # a GPT2LMHeadModel; the others take their code along
    "sigmoid": dict(head="sigmoid", tied=False),
    "taylor": dict(head="taylor", gain=10.0),
    "entmax15": dict(head="entmax15", gain=2.0),  # exact zeros
    "gs_softmax_f1": dict(head="gs_softmax_f1"),
    "perturb_max": dict(head="perturb_max", learn_gain=True, gain=3.0),
    "bayesian": dict(head="sigsoftmax", bayesian=True, prior_sigma=0.1, gain=4.0),
    "modern": dict(head="softmax", trunk="modern", tied=False, gain=3.0),
    "random": dict(head="softmax", trunk="any_order", trunk_args={"sinusoidal": True}, gain=4.0),
    "fractal": dict(head="am_softmax", trunk="any_order", trunk_args={"order": "fractal"}, bayesian=True),
}
GAPS = torch.tensor([[5, -1, 7, -1, -1, 2], [-1, -1, -1, -1, -1, -1], [1, 2, 3, 4, 5, -1]])


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
    sizes = dict(vocab_size=tokenizer.vocab_size, block_size=16, n_layer=2, n_head=2, n_embd=32, dropout=0.0)
    config = dict(name="x", tokenizer=tokenizer.name, tokenizer_fingerprint=tokenizer.fingerprint) | sizes
    config |= dict(head_args={}, bayesian=False, prior_sigma=0.02, dataset="wikitext103") | changes
    torch.manual_seed(0)
    model = build(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.05)
    save(run / "best", model, config, {"step": 1, "val_nll": None}, None, tokenizer)


def loaded(folder: Path):
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


def exported(at: Path, tokens: Path, **changes):
    """(folder, the model there, ours, our draws of its weights)"""
    write_run(at / "run", tokens, **changes)
    assert export.main([str(at / "run"), str(at / "hf"), f"--samples={DRAWS}", f"--seed={SEED}"]) == 0
    ours, ckpt = load_model(at / "run")
    return at / "hf", loaded(at / "hf"), ours, ours.head.draws(DRAWS, run_seed(SEED, ckpt.config))


@pytest.fixture(scope="module", params=ROWS)
def row(request, token_folder, tmp_path_factory):
    return exported(tmp_path_factory.mktemp("row"), token_folder, **ROWS[request.param])


@pytest.fixture(scope="module")
def filler(token_folder, tmp_path_factory):
    return exported(tmp_path_factory.mktemp("filler"), token_folder, **ROWS["random"])


@pytest.fixture(scope="module")
def masked(token_folder, tmp_path_factory):
    at = tmp_path_factory.mktemp("masked")
    return exported(at, token_folder, head="entmax15", gain=2.0, trunk="masked", bayesian=True)


def texts(count: int, length: int) -> torch.Tensor:
    return torch.randint(VOCAB, (count, length), generator=torch.Generator().manual_seed(2))


def ones(x: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(x)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- what transformers computes ---------------------------------------------------------------------------


@torch.no_grad()
def test_logits_are_our_log_probs(row):
    _, theirs, ours, draws = row
    plain = isinstance(theirs, GPT2LMHeadModel)
    assert plain == export.is_gpt2(ours)
    x = texts(3, ours.trunk.context)
    got, want = theirs(x, labels=x), ours.log_probs(x, draws)
    log_p = got.logits.log_softmax(-1) if plain else got.logits
    torch.testing.assert_close(log_p.exp(), want.exp(), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(got.loss, -want[:, :-1].gather(2, x[:, 1:, None]).mean())
    assert theirs(x, logits_to_keep=2).logits.shape == (3, 2, VOCAB) and got.logits.dtype == torch.float32
    in_fours = theirs(x, labels=x, num_items_in_batch=4).loss  # as Trainer asks for it
    torch.testing.assert_close(in_fours, got.loss * x[:, 1:].numel() / 4)


@torch.no_grad()
@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_cached_and_padded_texts_have_the_same_distributions(row, name):
    """Under either name of the cache. Padding is of an id that the vocabulary may not have."""
    _, theirs, ours, draws = row
    if isinstance(theirs, GPT2LMHeadModel):
        pytest.skip("transformers' own")
    x = texts(3, 9)
    want = ours.log_probs(x, draws).exp()
    half = theirs(x[:, :5], use_cache=True)
    rest = theirs(x[:, 5:], **{name: half[1]})
    torch.testing.assert_close(torch.cat((half.logits, rest.logits), 1).exp(), want, atol=1e-5, rtol=1e-3)
    left = theirs(pad(x, (4, 0), value=VOCAB), attention_mask=pad(ones(x), (4, 0))).logits[:, 4:]
    torch.testing.assert_close(left.exp(), want, atol=1e-5, rtol=1e-3)


REFUSED = dict(output_hidden_states=True, output_attentions=True, inputs_embeds=torch.zeros(1, 2, 32))
REFUSED |= dict(attention_mask=torch.ones(1, 3), past=DynamicCache())


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_answer_is_refused(filler, masked, name):
    for theirs in (filler[1], masked[1]):
        ids = {} if name == "inputs_embeds" else {"input_ids": texts(1, 2)}
        with pytest.raises(ValueError, match=name):
            theirs(**ids, **{name: REFUSED[name]})
        theirs(texts(1, 2), **dict.fromkeys(["output_hidden_states", "token_type_ids"]))
        with pytest.raises(ValueError, match="17 tokens do not fit"):
            theirs(texts(1, 17))
    saved = copy.deepcopy(filler[1])
    saved.config.output_hidden_states = True
    with pytest.raises(ValueError, match="output_hidden_states"):
        saved(texts(1, 2))


@torch.no_grad()
def test_greedy_text_is_ours(row):
    """With a cache, without one, and beside padding; for as long as asked: no token ends the text."""
    folder, theirs, ours, draws = row
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    x, how = torch.cat((torch.arange(VOCAB)[:, None], texts(VOCAB, 3)), 1), dict(do_sample=False)
    x = x[:: 1 if isinstance(theirs, GPT2LMHeadModel) else 50]
    want = torch.stack([token for token, _ in generate(ours, x, 6, draws, Decoding(temperature=0))], 1)
    for use_cache in (True, False):
        got = theirs.generate(x, attention_mask=ones(x), max_new_tokens=6, use_cache=use_cache, **how)
        assert torch.equal(got[:, 4:], want)
    padded = pad(x, (3, 0), value=tokenizer.pad_token_id)
    got = theirs.generate(padded, attention_mask=pad(ones(x), (3, 0)), max_new_tokens=6, **how)
    assert torch.equal(got[:, 7:], want)


@torch.no_grad()
def test_sampled_text_is_of_our_distribution(row):
    _, theirs, ours, draws = row
    x, count = texts(1, 4), 6000
    p = ours.log_probs(x, draws)[0, -1].double().exp()
    torch.manual_seed(3)
    many = x.expand(count, 4)
    got = theirs.generate(many, attention_mask=ones(many), max_new_tokens=1, do_sample=True, top_k=0)
    observed = torch.bincount(got[:, -1], minlength=VOCAB).double()
    assert not observed[p == 0].any()
    often = p * count >= 5
    bins = [torch.cat((t[often], t[~often].sum()[None])) for t in (observed, p / p.sum() * count)]
    kept = bins[1] > 0
    assert kept.sum() > 5
    assert chisquare(*(b[kept].numpy() for b in bins)).pvalue > 1e-3


@torch.no_grad()
@pytest.mark.parametrize(
    "how", [dict(top_k=5), dict(top_p=0.8), dict(min_p=0.5), dict(temperature=1.5, top_k=50)], ids=str
)
def test_a_cut_is_that_of_sample(row, how):
    _, theirs, ours, draws = row
    x = texts(4, 6)
    flags = dict(temperature=1.0, top_k=0) | how | dict(output_scores=True, return_dict_in_generate=True)
    got = theirs.generate(x, attention_mask=ones(x), do_sample=True, max_new_tokens=1, **flags)
    want = truncate(ours.log_probs(x, draws)[:, -1], Decoding(**how))
    torch.testing.assert_close(got.scores[0].softmax(1), want, atol=1e-6, rtol=1e-4)
    assert (want == 0).any()


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


# ---- what a folder holds ----------------------------------------------------------------------------------


def test_the_code_imports_itself_and_nothing_that_is_not_there(row):
    """As transformers checks it on the hub: every import outside of a `try`. Before 5.23 it copies what the
    one file imports."""
    from transformers.dynamic_module_utils import get_imports, get_relative_imports

    folder = row[0]
    files = {path.name for path in folder.glob("*.py")}
    gaps = (folder / "custom_generate" / "generate.py").is_file()
    assert gaps == (row[2].trunk.config.order == "any")
    if not files:
        return
    needed = get_relative_imports(folder / "modeling_nanoheads.py")
    assert {f"{name}.py" for name in needed} | {"modeling_nanoheads.py"} == files
    imported = {name for path in folder.glob("*.py") for name in get_imports(path)}
    assert imported - set(sys.stdlib_module_names) == {"torch", "numpy", "transformers"}


def test_its_tokenizer_is_ours(row, token_folder):
    """It pads with an id that the model does not look up, or with a byte that no text has, so that no id is
    without an embedding. The harness needs an eos, at which `generate` does not stop."""
    folder, theirs, ours, _ = row
    mine, tokenizer = load_tokenizer(token_folder), AutoTokenizer.from_pretrained(folder)
    text = "the other one,\n ünï \u00ff <|endoftext|> <|pad|>"
    assert tokenizer.encode(text) == list(mine.encode(text)) and tokenizer.decode(mine.encode(text)) == text
    assert tokenizer.model_max_length == ours.trunk.context
    plain = isinstance(theirs, GPT2LMHeadModel)
    assert len(tokenizer) == VOCAB + (not plain)
    batch = tokenizer([text, "the"], padding=True, return_tensors="pt")
    assert batch["attention_mask"][1, 0] == 0 and sorted(batch) == ["attention_mask", "input_ids"]
    assert (batch["input_ids"][1, 0] == VOCAB) != plain
    eos = tokenizer.eos_token_id
    assert eos == tokenizer.bos_token_id < VOCAB and mine.decode([eos]) == "\ufffd"
    assert theirs.config.eos_token_id is None and theirs.generation_config.eos_token_id is None


def test_the_configuration_says_what_the_run_had(row, token_folder, tmp_path):
    dropouts = re.compile(r'"\w*(?:drop|dropout)": ([\d.]+)')
    assert {float(n) for n in dropouts.findall((row[0] / "config.json").read_text())} == {0.0}
    write_run(tmp_path / "run", token_folder, head="softmax", dropout=0.25)
    export.export(tmp_path / "run", tmp_path / "hf")
    assert {float(n) for n in dropouts.findall((tmp_path / "hf" / "config.json").read_text())} == {0.25}


def test_special_tokens(tmp_path):
    model = byte_level(byte_vocab())
    assert export.special_tokens(BPETokenizer(model)) == ("", "\u00ff")
    assert export.special_tokens(WordTokenizer.of(["a", "b"])) == ("", "")
    assert export.special_tokens(GPT2Tokenizer()) == ("<|endoftext|>",) * 2
    model.add_special_tokens(["<s>", "</s>", "[PAD]"])
    model.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_tokenizer(tmp_path / "tokenizer.json")
    assert export.special_tokens(tokenizer) == ("</s>", "[PAD]") and export.id_of("</s>", tokenizer) == 257


def saved_tokenizer(tokenizer, folder: Path):
    export.save_tokenizer(tokenizer, folder, 16, export.PAD)
    return AutoTokenizer.from_pretrained(folder)


def test_words_are_written_as_we_write_them(tmp_path):
    words = WordTokenizer.of(["\n", "a", "class", "##b"])
    theirs = saved_tokenizer(words, tmp_path)
    ids = [0, 1, 2, 0, 0, 3, 1, 3]
    assert theirs.decode(ids) == words.decode(ids) == "\na class\n\n##b a ##b"
    assert theirs.encode("a class\n ##b") == [1, 2, 0, 3]
    assert theirs.eos_token_id is None and theirs.pad_token_id == 4


def test_gpt2s_tokenizer_goes_along(tmp_path):
    """With a few merges, for GPT-2's files are not everywhere."""
    merges = [b"th", b"the", b" t", b" the", b"er", b"\n\n"]
    ranks = {bytes([i]): i for i in range(256)} | {token: 256 + i for i, token in enumerate(merges)}
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    end = {"<|endoftext|>": 262}
    mine = GPT2Tokenizer()
    encoding = tiktoken.Encoding("few", pat_str=pattern, mergeable_ranks=ranks, special_tokens=end)
    vars(mine)["_encoding"] = encoding
    theirs = saved_tokenizer(mine, tmp_path)
    text = "the other, there's  three\n\n\n the ünï 12 <|endoftext|> \n"
    ids = ids_of(text, mine)
    assert theirs.encode(text) == ids != mine.encode(text) and theirs.decode(ids) == text
    assert (theirs.eos_token_id, theirs.bos_token_id, theirs.pad_token_id) == (262, 262, 263)


def test_the_card_says_what_it_is(row, token_folder, tmp_path, monkeypatch):
    text = (row[0] / "README.md").read_text()
    assert "license: cc-by-sa-3.0" in text and "PPL" not in text
    if "trust_remote_code=True" in text:
        assert list(row[0].glob("*.py"))
        return
    assert not list(row[0].glob("*.py"))
    write_run(
        tmp_path / "run", token_folder, head="softmax", dataset="text", trunk="any_order", bayesian=True
    )
    measured = {"measure": "text", "definition": 1, "settings": {}, "name": "run", "ppl_tok": 12.345}
    measured["weights_sha256"] = weights_digest(tmp_path / "run" / "best")
    Store(tmp_path / "results" / "one.jsonl").put([measured])
    (tmp_path / "results" / "of_another_program.jsonl").write_text('{"text": "a b c"}\n')
    monkeypatch.setattr(card, "WORK", tmp_path)
    export.export(tmp_path / "run", tmp_path / "hf")
    text = (tmp_path / "hf" / "README.md").read_text()
    assert re.search(r"\| PPL_tok \| 12.3[45] \|", text) and "results/one.jsonl" in text
    assert "license" not in text.split("---")[1] and "8 draws" in text and "`any_order`" in text


@pytest.mark.parametrize(
    "beside, step, says",
    [
        ({}, 100, "split is 20.09."),
        ({"eval_windows": 4}, 100, ""),  # of a part of the split
        ({"eval_windows": 4}, 200, "split is 20.09."),
        ({"trunk": "any_order"}, 200, ""),  # in an order in which the folder's model is not asked
    ],
)
def test_a_card_has_a_perplexity_of_the_whole_split_from_left_to_right_alone(beside, step, says):
    ckpt = SimpleNamespace(config={"max_steps": 200, **beside}, progress={"step": step, "val_nll": 3.0})
    assert card.progress(ckpt).partition("validation ")[2] == says


# ---- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags, names",
    [
        (["{run}", "{new}", "--samples=101"], "samples"),
        (["{run}", "{new}\0"], "folder"),
        (["{run}", "{run}"], "exists"),
        (["{cut}", "{new}"], "progress.json"),
        (["{run}", "{new}", "--push=somebody/model"], "HF_TOKEN"),
        (["{run}", "{new}", "--push=model"], "push"),
        (["{run}", "{new}", "--dry_run"], "dry_run"),
        (["{run}", "{new}", "--private"], "private"),
    ],
)
def test_what_cannot_be_exported_is_refused(token_folder, tmp_path, monkeypatch, flags, names):
    monkeypatch.setattr(export, "get_token", lambda: None)
    for name in ("run", "cut"):
        write_run(tmp_path / name, token_folder, head="softmax")
    (tmp_path / "cut" / "best" / "progress.json").write_text("{")
    with pytest.raises(UserError, match=names):
        export.main([f.format(**{n: tmp_path / n for n in ("run", "cut", "new")}) for f in flags])
    assert {path.name for path in tmp_path.iterdir()} == {"run", "cut"}


@pytest.mark.parametrize("kind", [OSError, SafetensorError])
def test_an_export_onto_a_full_disk_leaves_nothing(trained, tmp_path, monkeypatch, kind):
    def full(model, folder, end, pad):
        (folder / "config.json").write_text("{}")
        raise kind(28, "No space left on device")

    monkeypatch.setattr(export, "to_gpt2", full)
    with pytest.raises(OSError, match="could not write.*No space left on device"):
        export.export(trained, tmp_path / "gpt2")
    assert not list(tmp_path.iterdir())


def test_the_later_of_two_exports_leaves_nothing(trained, tmp_path, monkeypatch):
    first = export.card

    def another(*args):
        (tmp_path / "hf").mkdir()
        (tmp_path / "hf" / "config.json").write_text("theirs")
        return first(*args)

    monkeypatch.setattr(export, "card", another)
    with pytest.raises(UserError, match="exists"):
        export.export(trained, tmp_path / "hf")
    assert [p.name for p in tmp_path.rglob("*")] == ["hf", "config.json"]


# ---- every version of transformers -------------------------------------------------------------------------

VERSIONS = ["transformers==4.57.3", "transformers==5.8.1", "transformers==5.23.0", "--upgrade transformers"]
THERE = """
import json, sys, torch, transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
for name in ("model", "heads", "runtime", "data", "evaluation"):
    try:
        __import__(name)
    except ImportError:
        continue
    sys.exit(f"{name} is here")
written = {}
for folder in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    batch = tokenizer(["the other", "one"], padding=True, return_tensors="pt")
    texts = []
    for how in ({}, {"do_sample": True, "top_k": 0}, {"use_cache": False}):
        torch.manual_seed(5)
        ids = model.generate(**batch, max_new_tokens=5, **how)
        texts.append(tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1]:]))
    if hasattr(model, "lm") and model.config.run.get("trunk") == "any_order":
        gaps = torch.tensor([[5, -1, 7, -1, -1, 2]])
        texts.append(model.generate(gaps, generator=torch.Generator().manual_seed(3)).tolist())
    written[folder] = {"texts": texts, "p": model(torch.tensor([[1, 2, 3]])).logits.softmax(-1)[0].tolist()}
print(json.dumps([transformers.__version__, written]))
"""


@pytest.mark.slow
def test_every_version_loads_an_export_and_writes_the_same(token_folder, tmp_path):
    """Greedy and drawn, beside padding and with gaps; where nanoHeads is not."""
    want, greedy, found = {}, {}, {}
    (tmp_path / "empty").mkdir()
    for name in ("plain", "entmax15", "gs_softmax_f1", "bayesian", "modern", "random"):
        folder, _, ours, draws = exported(tmp_path / name, token_folder, **ROWS[name])
        want[str(folder)] = ours.log_probs(torch.tensor([[1, 2, 3]]), draws).softmax(-1)[0]
        mine, texts = load_tokenizer(token_folder), []
        for prompt in ("the other", "one"):
            drawn = generate(ours, torch.tensor([mine.encode(prompt)]), 5, draws, Decoding(temperature=0))
            texts.append(mine.decode([int(token) for token, _ in drawn]))
        greedy[str(folder)] = texts
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    for i, what in enumerate(VERSIONS):
        env = tmp_path / f"env{i}"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
        (site,) = env.glob("lib/python*/site-packages")
        (site / "shared.pth").write_text(sysconfig.get_path("purelib"))  # torch, and whatever fits
        python = env / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", *what.split()], check=True)
        done = subprocess.run(
            [python, "-c", THERE, *want],
            cwd=tmp_path / "empty",
            env=kept | {"HF_HOME": str(tmp_path / f"home{i}"), "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        version, found[what] = json.loads(done.stdout)
        print(version, found[what][min(want)]["texts"])
        assert version == what.partition("==")[2] or not what.endswith(version)
    for written in found.values():
        for folder, p in want.items():
            torch.testing.assert_close(torch.tensor(written[folder]["p"]), p, atol=1e-6, rtol=1e-4)
            assert written[folder]["texts"][0] == written[folder]["texts"][2] == greedy[folder]
            assert written[folder]["texts"] == found[VERSIONS[0]][folder]["texts"]


# ---- gaps --------------------------------------------------------------------------------------------------


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
    for text, more in ((ids, dict(generator=seeded(0))), (ids, dict(order="random")), (GAPS, how)):
        with pytest.raises(ValueError, match="gaps"):
            theirs.generate(text, **more)
    with pytest.raises(ValueError, match="20 tokens do not fit the 16"):
        theirs.generate(torch.full((1, 20), -1))


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


@torch.no_grad()
def test_bursts_have_the_distribution_of_a_token_a_pass():
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
    with pytest.raises(ValueError, match="use_cache=False"):
        theirs(x, cache=DynamicCache())
    text = theirs.generate(x[:, :5], attention_mask=ones(x[:, :5]), do_sample=False, max_new_tokens=4)
    for n in range(5, 9):
        assert torch.equal(text[:, n], theirs(text[:, :n]).logits[:, -1].argmax(1))


# ---- lm-evaluation-harness ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "sigmoid", "random"])
def test_the_harness_scores_what_we_score(token_folder, tmp_path, name):
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.tasks import TaskManager

    folder, _, ours, _ = exported(tmp_path, token_folder, **ROWS[name])
    text, file = " \n = Title = \n \n" + synthetic_text(8, 5), tmp_path / "wiki.test.tokens"
    file.write_text(text, encoding="utf-8", newline="\n")  # in the form of WikiText-103's
    tokenizer, blank = load_tokenizer(token_folder), " \n"
    prefix = tokenizer.encode(blank)[-1]
    about = {"file": str(file)}
    done = lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained={folder},trust_remote_code=True,prefix_token_id={prefix}",
        tasks=["nanoheads_wikitext103"],
        task_manager=TaskManager(include_path=str(export.CODE / "docs" / "lm_eval"), metadata=about),
        device="cpu",
        batch_size=4,
        metadata=about,
    )
    got = done["results"]["nanoheads_wikitext103"]
    nll = score(ours, torch.tensor([prefix, *tokenizer.encode(text.removeprefix(blank))]).numpy()).nll
    assert got["bits_per_byte,none"] == pytest.approx(bits_per_byte(nll, len(text.encode())), rel=1e-6)
    words = len(text.split()) + text.count("\n")
    assert got["word_perplexity,none"] == pytest.approx(perplexity(nll, words), rel=1e-6)


# ---- the hub -----------------------------------------------------------------------------------------------


class Hub(ThreadingHTTPServer):
    """What of the hub's API takes a model, on this machine. `files` is what the last commit holds."""

    def __init__(self, refuses: int = 0):
        self.refuses, self.files, self.tokens, self.created = refuses, {}, set(), {}
        super().__init__(("127.0.0.1", 0), Taker)
        self.address = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Taker(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_):
        pass

    def do_POST(self):
        length = self.headers.get("Content-Length")
        body = self.rfile.read(int(length)) if length else b"".join(self.chunks())
        self.server.tokens.add(self.headers.get("Authorization"))
        if self.server.refuses:
            self.answer({"error": f"no room for {self.headers.get('Authorization')}"}, self.server.refuses)
        elif self.path == "/api/repos/create":
            self.server.created = json.loads(body)
            self.answer({"url": f"{self.server.address}/somebody/model"})
        elif self.path.endswith("/preupload/main"):
            files = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in files]
            self.answer({"files": modes})
        elif self.path.endswith("/commit/main"):
            lines = map(json.loads, body.splitlines())
            files = [line["value"] for line in lines if line["key"] == "file"]
            self.server.files = {file["path"]: base64.b64decode(file["content"]) for file in files}
            url = f"{self.server.address}/somebody/model/commit/{'0' * 40}"
            self.answer({"commitUrl": url, "commitOid": "0" * 40})
        else:
            self.answer({})  # of the card's metadata, for one

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
        self.send_header("X-Error-Message", str(content.get("error", "")))
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
    hub, folder = Hub(), tmp_path / "hf"
    done = pushed(trained, folder, hub, "--private")
    assert done.returncode == 0 and f"sent to {hub.address}/somebody/model" in done.stdout, done.stderr
    local = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert {k: v for k, v in hub.files.items() if k != ".gitattributes"} == local
    assert "model.safetensors" in local and hub.tokens == {"Bearer hf_secret"}
    assert {"name": "model", "organization": "somebody"}.items() <= hub.created.items()
    assert hub.created.get("private") or hub.created.get("visibility") == "private"
    card_text = hub.files["README.md"].decode()
    assert 'AutoModelForCausalLM.from_pretrained("somebody/model")' in card_text
    assert re.search(r"validation split is \d+\.\d\d\.", card_text) and '"learning_rate": ' in card_text


def test_a_hub_that_refuses_leaves_the_folder(trained, tmp_path):
    """It repeats the token, which is not printed."""
    done = pushed(trained, tmp_path / "hf", Hub(refuses=403))
    assert done.returncode == 2 and (tmp_path / "hf" / "config.json").is_file()
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert "no room for Bearer" in line and f"hf upload somebody/model {tmp_path / 'hf'}" in line
    assert "hf_secret" not in done.stdout + done.stderr


def test_a_dry_run_sends_nothing(trained, tmp_path, capsys):
    assert export.main([str(trained), str(tmp_path / "hf"), "--push=somebody/model", "--dry_run"]) == 0
    out = capsys.readouterr().out
    assert "would send to https://huggingface.co/somebody/model:" in out
    size = (tmp_path / "hf" / "model.safetensors").stat().st_size
    assert f"{size:,} bytes  model.safetensors" in out and "library_name: transformers" in out
