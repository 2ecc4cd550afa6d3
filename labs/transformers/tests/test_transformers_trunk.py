"""The trunk `transformers`: what transformers computes, with every head's step, cache and resume."""

import importlib
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import eval_diversity
import sample
from common.errors import UserError
from common.places import registered
from data.open import load_tokenizer, tokenizer_of
from data.tokens import open_tokens
from evaluate.decoding import Decoding
from evaluate.sampling import generate
from evaluate.scoring import score
from evaluate.settings import run_seed
from labs.transformers import export
from labs.transformers.tests.exports import cache_of_code, loaded  # noqa: F401
from labs.transformers.tokenizer_files import portable
from model import build
from tables.store import Store
from tests.fixtures import VOCAB, curve, same_tensors, weights
from training.checkpoint import save, weights_digest
from training.run import Progress, Run, load_model

importer = importlib.import_module("labs.transformers.import")

SIZE = dict(
    vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=16
)
SIZE |= dict(intermediate_size=48, initializer_range=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=2)
KINDS = {
    "llama": dict(num_key_value_heads=2, tie_word_embeddings=True),
    "qwen3": dict(num_key_value_heads=2, head_dim=16, tie_word_embeddings=False),
    "gpt_neox": dict(tie_word_embeddings=False),
    "mistral": dict(num_key_value_heads=2, sliding_window=6, tie_word_embeddings=False),
    "granite": dict(logits_scaling=4.0, num_key_value_heads=2, tie_word_embeddings=True),
    "gemma2": dict(num_key_value_heads=2, head_dim=8, final_logit_softcapping=3.0, sliding_window=6),
    "phi": dict(tie_word_embeddings=False),  # its readout has a bias
    "mamba2": dict(num_heads=4, head_dim=16, state_size=8, n_groups=1, chunk_size=8),  # an infinite limit
    "opt": dict(word_embed_proj_dim=24, ffn_dim=48),  # narrower embeddings than layers
    "lfm2": dict(num_key_value_heads=2, layer_types=["conv", "full_attention"]),  # two kinds of cache
}
OTHER_ENDS = {"llama": dict(eos_token_id=[2, 3])}


def make(folder: Path, tokens: Path, kind: str = "llama", start: bool = False, **changes):
    """A model of transformers that nobody trained, saved in `folder` with the tokenizer of `tokens`."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **SIZE | KINDS[kind] | changes)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.05)
    model.save_pretrained(folder)
    backend = portable(load_tokenizer(tokens))
    special = {}
    if start:
        first = backend.id_to_token(1)
        backend.post_processor = TemplateProcessing(single=f"{first} $A", special_tokens=[(first, 1)])
        special = {"bos_token": first}
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def imported(token_folder, tmp_path_factory) -> Path:
    """A run of a tiny Llama. Read only."""
    at = tmp_path_factory.mktemp("imported")
    make(at / "llama", token_folder)
    importer.import_model(str(at / "llama"), at / "run")
    return at / "run"


def tokens_of(count: int, length: int) -> torch.Tensor:
    return torch.randint(VOCAB, (count, length), generator=torch.Generator().manual_seed(3))


def check_cache(model, prompt: torch.Tensor) -> None:
    """Token by token, by transformers' cache, which begins anew at the end of the block."""
    draws, hidden = model.head.draws(1, 0), []
    for cached in (False, True):
        drawn = generate(model, prompt, 20, draws, generator=torch.Generator(), cached=cached)
        hidden.append(torch.stack([h for _, h in drawn]))
    torch.testing.assert_close(*hidden, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_log_p_is_the_models_own(kind, token_folder, tmp_path):
    """And of the exported folder, where that can be, with a shorter text beside a longer one."""
    if kind == "gemma2" and "softcap" not in registered("heads", "HEADS", "heads"):
        pytest.skip("labs/more_heads is not there")
    theirs, x = make(tmp_path / "in", token_folder, kind), tokens_of(3, 16)
    assert importer.main([str(tmp_path / "in"), str(tmp_path / "run")]) == 0
    ours, run = load_model(tmp_path / "run")
    torch.testing.assert_close(ours.log_probs(x), theirs(x).logits.log_softmax(-1), atol=1e-5, rtol=0)
    assert tokenizer_of(run).fingerprint == load_tokenizer(token_folder).fingerprint
    assert run.config.trunk == "transformers" and run.config.block_size == 16
    # exported again
    assert export.main([str(tmp_path / "run"), str(tmp_path / "hf")]) == 0
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    assert same_tensors(dict(back.state_dict()), dict(theirs.state_dict()))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    batch = tokenizer(["aei tents", "some longer"], padding=True, return_tensors="pt")
    shorter, length = tokenizer("aei tents", return_tensors="pt").input_ids, batch["input_ids"].shape[1]
    assert shorter.tolist()[0] == tokenizer_of(run).encode("aei tents") and shorter.shape[1] != length
    logits = back(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    padded = logits[0, -shorter.shape[1] :].log_softmax(-1)
    torch.testing.assert_close(padded, ours.log_probs(shorter)[0], atol=1e-4, rtol=0)
    check_cache(ours, x[:, :5])


@torch.no_grad()
def test_a_start_token_stands_before_every_text(token_folder, tmp_path):
    """As the model's tokenizer would put it: scored, sampled and taught with it."""
    theirs, x = make(tmp_path / "in", token_folder, start=True), tokens_of(3, 15)
    importer.import_model(str(tmp_path / "in"), tmp_path / "run")
    ours, run = load_model(tmp_path / "run")
    assert run.config.trunk_args["start_token"] == 1 and run.config.block_size == 15
    log_p = theirs(torch.nn.functional.pad(x, (1, 0), value=1)).logits[:, 1:].log_softmax(-1)
    torch.testing.assert_close(ours.log_probs(x), log_p, atol=1e-5, rtol=0)
    check_cache(ours, x[:, :5])


@torch.no_grad()
def test_ids_beyond_the_tokenizers_get_no_probability(token_folder, tmp_path):
    """Also where the readout has a bias, and in the exported folder."""
    theirs, x = make(tmp_path / "in", token_folder, "phi", vocab_size=VOCAB + 5), tokens_of(3, 16)
    importer.import_model(str(tmp_path / "in"), tmp_path / "run")
    want = theirs(x).logits[..., :VOCAB].log_softmax(-1)
    torch.testing.assert_close(load_model(tmp_path / "run")[0].log_probs(x), want, atol=1e-5, rtol=0)
    assert export.main([str(tmp_path / "run"), str(tmp_path / "hf")]) == 0
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")(x).logits.log_softmax(-1)
    torch.testing.assert_close(back[..., :VOCAB], want, atol=1e-5, rtol=0)
    assert back[..., VOCAB:].max() < -1000


@pytest.mark.parametrize("kind", ["llama", "gemma2", "mistral", "opt", "lfm2"])
@torch.no_grad()
def test_another_head_takes_its_code_along(kind, token_folder, tmp_path):
    """The folder computes what the run does, beside padding and by a cache; its tokenizer puts the start."""
    make(tmp_path / "in", token_folder, kind, start=True, **OTHER_ENDS.get(kind, {}))
    importer.import_model(str(tmp_path / "in"), tmp_path / "in_run")
    tokenizer = tokenizer_of(start := Run(tmp_path / "in_run"))
    other = dict(head="gs_softmax_f1", head_args={}, bayesian=kind == "opt", prior_sigma=0.1)
    config = replace(start.config, **other)
    model = build(vars(config))
    state = {k: w for k, w in start.weights().items() if k in model.state_dict()}
    model.load_state_dict(state, strict=False)
    save(tmp_path / "run" / "best", model, config, Progress(1), None, tokenizer)
    assert export.main([str(tmp_path / "run"), str(tmp_path / "hf"), "--samples=3"]) == 0
    theirs, (ours, _), x = loaded(tmp_path / "hf").eval(), load_model(tmp_path / "run"), tokens_of(3, 15)
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id) == (1, [2, 3] if kind == "llama" else 2)
    draws = ours.head.draws(3, run_seed(1337, vars(config)))
    want, first = ours.log_probs(x, draws).exp(), functional.pad(x, (1, 0), value=1)
    torch.testing.assert_close(theirs(first).logits[:, 1:].exp(), want, atol=1e-5, rtol=1e-3)
    half = theirs(first[:, :5], use_cache=True)
    rest = theirs(first[:, 5:], past_key_values=half.past_key_values).logits
    torch.testing.assert_close(rest.exp(), want[:, 4:], atol=1e-5, rtol=1e-3)
    at = AutoTokenizer.from_pretrained(tmp_path / "hf")
    batch = at(["aei tents", "some longer"], padding=True, return_tensors="pt")
    row, count = at("aei tents").input_ids, int(batch["attention_mask"][0].sum())
    assert row == [1, *tokenizer.encode("aei tents")] and count == len(row) < batch["input_ids"].shape[1]
    alone = ours.log_probs(torch.tensor([row[1:]]), draws)
    padded = theirs(**batch).logits[:1, -len(row) + 1 :]
    torch.testing.assert_close(padded.exp(), alone.exp(), atol=1e-5, rtol=1e-3)
    greedy = torch.stack([t for t, _ in generate(ours, x[:, :5], 6, draws, Decoding(temperature=0))], 1)
    how = dict(max_new_tokens=6, do_sample=False)
    got = theirs.generate(first[:, :6], attention_mask=torch.ones_like(first[:, :6]), **how)
    assert torch.equal(got[:, 6:], greedy)
    if kind != "opt":  # Bayesian draws do not train
        labels = functional.pad(x[:, 1:], (2, 0), value=-100)
        with torch.enable_grad():
            theirs.train()(first, labels=labels).loss.backward()
            total, count = ours.train().requires_grad_(True)(x, functional.pad(x[:, 1:], (0, 1), value=-1))
            (total / count).backward()
        embedding = theirs.get_input_embeddings().weight
        torch.testing.assert_close(embedding.grad, ours.trunk.embedding.grad, atol=1e-5, rtol=1e-3)


def finetuned(run, tiny, imported: Path, **changes):
    """A training from the run `imported`, with what finetune.py says."""
    keys = dict(finetune=True, init_from=str(imported), partition_bias=True, name="tuned")
    return run(tiny(**keys | changes))


STILL = dict(learning_rate=0.0, min_lr=0.0, max_steps=1)


def test_fine_tuning_begins_where_the_model_is(run, tiny, imported, token_folder, tmp_path):
    """With softmax at its perplexity. Sizes, tokenizer and readout are the model's."""
    assert finetuned(run, tiny, imported, **STILL) == 0
    model, begun = load_model(imported)[0], Run(tmp_path / "out")
    assert same_tensors(begun.weights(), model.state())
    assert (begun.config.n_embd, begun.config.tied, begun.config.init_spent) == (32, True, {})
    assert json.dumps(begun.config.trunk_args) == json.dumps(Run(imported).config.trunk_args)


def test_a_bias_of_minus_the_log_partition(run, tiny, imported, token_folder, tmp_path):
    """Sigmoids whose logits are log p on the average."""
    assert finetuned(run, tiny, imported, head="gs_softmax_f1", **STILL) == 0
    model, x = load_model(imported)[0], open_tokens(token_folder / "train.bin").ids[: 4 * 16].astype("int64")
    with torch.no_grad():
        logits = model.trunk(torch.from_numpy(x).view(4, 16)) @ model.trunk.embedding.t()
    bias = load_model(tmp_path / "out")[0].head.projection.bias
    expected = -torch.tensor(VOCAB).log() - (logits.logsumexp(-1) - torch.tensor(VOCAB).log()).mean()
    torch.testing.assert_close(bias, expected.expand(VOCAB), atol=1e-4, rtol=0)


def test_no_more_layers_are_frozen_than_there_are(run, tiny, imported, token_folder):
    with pytest.raises(ValueError, match="freeze"):
        finetuned(run, tiny, imported, trunk_args={"freeze": 3})


def test_no_architecture_has_more_layers_than_its_run_says(imported):
    record = Run(imported).record
    record["trunk_args"]["architecture"]["num_hidden_layers"] = 10**12
    with pytest.raises(ValueError, match="n_layer"):
        build(record)


@pytest.mark.parametrize("args", [{}, {"freeze": 1}, {"checkpointing": True}], ids=str)
def test_it_resumes_to_the_bit(run, tiny, imported, token_folder, tmp_path, args):
    """Frozen layers stay as they are; the numbers of checkpointing are those without it."""
    for out, steps in (("whole", (6,)), ("halves", (3, 6))):
        for n, end in enumerate(steps):
            keys = dict(max_steps=end, lr_decay_steps=6, eval_interval=3, resume=bool(n), trunk_args=args)
            assert finetuned(run, tiny, imported, out_dir=str(tmp_path / out), **keys) == 0
    assert same_tensors(weights(tmp_path / "whole"), weights(tmp_path / "halves"))
    with pytest.raises(ValueError, match="holds this run"):
        finetuned(run, tiny, imported, out_dir=str(tmp_path / "whole"), lr_decay_steps=6, trunk_args=args)
    before, after = Run(imported).weights(), weights(tmp_path / "whole")
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert any(".layers.1." in key for key in changed)
    assert any(".layers.0." in key or "embed" in key for key in changed) == ("freeze" not in args)
    if "checkpointing" in args:
        plain = dict(out_dir=str(tmp_path / "plain"), lr_decay_steps=6, max_steps=6)
        assert finetuned(run, tiny, imported, **plain) == 0
        assert curve(tmp_path / "plain") == pytest.approx(curve(tmp_path / "whole"), rel=1e-6)


def test_an_imported_model_stands_wherever_a_run_does(run, tiny, imported, trained, token_folder, tmp_path):
    """As a teacher, a row and a writer."""
    taught = dict(head="sigmoid", labels="soft", candidates=3, teacher=str(imported), max_steps=1)
    assert run(tiny(**taught)) == 0
    assert Run(tmp_path / "out").config.teacher_weights == weights_digest(imported / "best")
    flags = [f"--out={tmp_path / 't'}", "--texts=8", "--prompt_tokens=4", "--new_tokens=12", "--device=cpu"]
    assert eval_diversity.main([str(trained), f"theirs={imported}", *flags]) == 0
    ours, theirs, *_ = Store(tmp_path / "t.jsonl").rows("text")
    assert ours["steps"] == 60 and "steps" not in theirs and theirs["training"]["trunk"] == "transformers"
    with pytest.raises(UserError, match="--data"):
        eval_diversity.main([str(imported), *flags[1:]])
    assert sample.main([str(imported), "--length=3", "--device=cpu", "--prompt=e"]) == 0


@pytest.mark.slow
def test_a_real_model(tmp_path):
    """SmolLM2-135M-Instruct of 4 bits, as its GGUF file is read by transformers: 33.39 is transformers' own
    perplexity of 6,144 tokens of WikiText-103's test file, by windows of 512 that do not overlap."""
    if not {"SMOLLM2_DIR", "WIKITEXT103_DIR"} <= os.environ.keys():
        pytest.skip("set SMOLLM2_DIR to SmolLM2's folder, WIKITEXT103_DIR to that of wiki.test.tokens")
    folder, file = os.environ["SMOLLM2_DIR"], Path(os.environ["WIKITEXT103_DIR"]) / "wiki.test.tokens"
    importer.import_model(folder, tmp_path / "run")
    model, run = load_model(tmp_path / "run")
    with file.open(encoding="utf-8", newline="\n") as text:
        start = text.read(40_000)
    ids = tokenizer_of(run).encode_each([start])
    assert ids.tolist() == AutoTokenizer.from_pretrained(folder)(start, add_special_tokens=False).input_ids
    assert math.exp(score(model, ids[:6145], context=512).mean) == pytest.approx(33.39, abs=0.005)
