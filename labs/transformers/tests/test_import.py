"""GPT-2s of other programs, transformers' and nanoGPT's: as runs, and back again; and what is no model."""

import importlib
import json
import os
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import eval_diversity
from data.tokenizers import GPT2Tokenizer, WordTokenizer
from data.tokens import open_tokens
from labs.transformers.gpt2 import to_gpt2
from labs.transformers.tokenizer_files import portable
from tests.fixtures import VOCAB, prepare_folder
from training.checkpoint import weights_digest
from training.run import Run, find_run, load_model

importer = importlib.import_module("labs.transformers.import")
T, C = 16, 32


def transformers_model(vocab: int = VOCAB, **changes):
    """A GPT-2 with weights so large that all of it shows: sharp attention, biases, uneven LayerNorms."""
    torch.manual_seed(7)
    size = dict(vocab_size=vocab, n_positions=T, n_layer=2, n_head=2, n_embd=C) | changes
    model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn_like(p) if p.dim() == 2 else p + 0.2 * torch.randn_like(p))
    return model


def run_of(folder: Path):
    """A transformers folder's model as a run, read with words for its tokens."""
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    WordTokenizer.of([f"w{i}" for i in range(size)]).save(folder)
    out = folder.with_name(folder.name + "_run")
    importer.import_model(str(folder), out)
    return load_model(out)


class NanoBlock(nn.Module):
    """nanoGPT's, by its own names (github.com/karpathy/nanoGPT, model.py)."""

    def __init__(self, bias: bool):
        super().__init__()
        self.ln_1, self.ln_2 = (nn.LayerNorm(C, bias=bias) for _ in range(2))
        self.attn, self.mlp = nn.Module(), nn.Module()
        self.attn.c_attn, self.attn.c_proj = nn.Linear(C, 3 * C, bias), nn.Linear(C, C, bias)
        self.mlp.c_fc, self.mlp.c_proj = nn.Linear(C, 4 * C, bias), nn.Linear(4 * C, C, bias)

    def forward(self, x):
        parts = self.attn.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (part.unflatten(2, (2, C // 2)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.attn.c_proj(mixed)
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x))))


class NanoGPT(nn.Module):
    def __init__(self, vocab: int, bias: bool):
        super().__init__()
        parts = {"wte": nn.Embedding(vocab, C), "wpe": nn.Embedding(T, C)}
        parts |= {"h": nn.ModuleList([NanoBlock(bias)]), "ln_f": nn.LayerNorm(C, bias=bias)}
        self.transformer, self.lm_head = nn.ModuleDict(parts), nn.Linear(C, vocab, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        torch.manual_seed(3)
        for p in self.parameters():
            p.data += 0.1 * torch.randn(p.shape)

    def forward(self, x):
        t = self.transformer
        return self.lm_head(t.ln_f(t.h[0](t.wte(x) + t.wpe.weight[: x.shape[1]])))


def nanogpt_file(folder: Path, vocab: int = VOCAB, bias: bool = True, compiled: bool = True) -> NanoGPT:
    model = NanoGPT(vocab, bias).eval()
    args = dict(n_layer=1, n_head=2, n_embd=C, block_size=T, bias=bias, vocab_size=vocab, dropout=0.1)
    state = {"_orig_mod." * compiled + key: w for key, w in model.state_dict().items()}
    saved = {"model": state, "optimizer": {}, "model_args": args, "iter_num": 9, "config": {"device": "cpu"}}
    folder.mkdir(exist_ok=True)
    torch.save(saved | {"best_val_loss": torch.tensor(3.0)}, folder / "ckpt.pt")
    return model


def put_tokenizer(folder: Path, token_folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes((token_folder / "tokenizer.json").read_bytes())


# ---- GPT-2


ODD = dict(vocab=65, n_layer=3, n_head=3, n_embd=15, n_positions=11)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, dict(vocab=64), ODD, dict(n_inner=4 * C)], ids=str)
def test_gpt2_in_and_out(tmp_path, changes):
    """transformers -> ours -> transformers: the same logits all the way, and in the end the same tensors."""
    theirs = transformers_model(**{"vocab": 61} | changes)
    size = theirs.config
    theirs.save_pretrained(tmp_path / "in")
    ours, run = run_of(tmp_path / "in")
    assert run.config.trunk == "gpt"
    x = torch.randint(size.vocab_size, (3, size.n_positions), generator=torch.Generator().manual_seed(5))
    trunk = ours.trunk
    logits = trunk(x) @ trunk.wte.weight[: size.vocab_size].t()
    torch.testing.assert_close(logits, theirs(x).logits, atol=1e-5, rtol=1e-5)
    padding = trunk.wte.weight[size.vocab_size :]
    assert len(trunk.wte.weight) % 64 == 0 and len(padding) < 64 and not padding.any()
    to_gpt2(trunk, tmp_path / "out")
    back = type(theirs).from_pretrained(tmp_path / "out").eval()
    assert torch.equal(back(x).logits, theirs(x).logits)
    assert back.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(w, theirs.state_dict()[k]) for k, w in back.state_dict().items())


OTHERS = dict(activation_function="gelu", tie_word_embeddings=False, n_inner=2 * C, layer_norm_epsilon=1e-2)
OTHERS |= dict(scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True)


@torch.no_grad()
@pytest.mark.parametrize("half, shards", [(False, "5GB"), (True, "40KB")])
def test_sharded_files_of_half_precision_are_read_as_float32(tmp_path, half, shards):
    theirs = transformers_model()
    theirs = theirs.bfloat16() if half else theirs
    theirs.save_pretrained(tmp_path / "in", max_shard_size=shards)
    assert len([*(tmp_path / "in").glob("*.safetensors")]) > half
    ours, _ = run_of(tmp_path / "in")
    assert all(p.dtype == torch.float32 for p in ours.parameters())
    assert torch.equal(ours.trunk.wpe.weight, theirs.transformer.wpe.weight.float())


@torch.no_grad()
@pytest.mark.parametrize("key, value", OTHERS.items())
def test_a_variant_of_gpt2_is_computed_by_transformers(tmp_path, key, value):
    theirs = transformers_model(**{key: value})
    theirs.save_pretrained(tmp_path / "in")
    ours, run = run_of(tmp_path / "in")
    x = torch.arange(2 * T).view(2, T)
    assert run.config.trunk == "transformers" and run.config.tied == (key != "tie_word_embeddings")
    torch.testing.assert_close(ours.log_probs(x), theirs(x).logits.log_softmax(-1), atol=1e-5, rtol=0)


def damaged(folder, cut: str = "", without: str = "none", **changes) -> None:
    """A GPT-2 with a file cut short, without some tensors, or of another configuration than its weights:
    transformers alone would fill missing tensors with random numbers, and leave others out."""
    transformers_model().save_pretrained(folder)
    config, weights = folder / "config.json", folder / "model.safetensors"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    save_file({k: w for k, w in load_file(weights).items() if without not in k}, weights, {"format": "pt"})
    if cut:
        (folder / cut).write_bytes((folder / cut).read_bytes()[:-100])


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: transformers_model().transformer.save_pretrained(folder),  # without a head
        lambda folder: folder.mkdir(),
        *(partial(damaged, cut=name) for name in ("model.safetensors", "config.json")),
        partial(damaged, n_embd=2 * C),
        partial(damaged, without=".h.1."),
        *(partial(damaged, n_layer=n) for n in (1, 10**12)),
        partial(damaged, model_type="llama"),
        partial(damaged, model_type="mine", auto_map={"AutoConfig": "mine.Config"}),
    ],
)
def test_what_is_not_a_whole_model_is_refused(tmp_path, make):
    folder = tmp_path / "model"
    make(folder)
    with pytest.raises(ValueError, match=str(folder)):
        importer.import_model(str(folder), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- nanoGPT


CASES = [(VOCAB, True, True), (50304, True, False), (50304, False, False)]


@pytest.mark.parametrize("vocab, bias, compiled", CASES)
def test_nanogpt(tmp_path, token_folder, vocab, bias, compiled):
    """Compiled or not, without biases, of GPT-2's padded vocabulary. Its GELU is the exact one."""
    path, known = tmp_path / "nano" / "ckpt.pt", min(vocab, 50257)
    model = nanogpt_file(path.parent, vocab, bias, compiled)
    if vocab == VOCAB:
        put_tokenizer(path.parent, token_folder)
    x = torch.randint(known, (3, T), generator=torch.Generator().manual_seed(1))
    importer.import_model(str(path), tmp_path / "run")
    ours, ckpt = load_model(tmp_path / "run")
    log_p = model(x).detach()[..., :known].log_softmax(-1)
    torch.testing.assert_close(ours.log_probs(x), log_p, atol=2e-3, rtol=0)
    assert ckpt.config.vocab_size == known
    assert (ckpt.config.tokenizer_fingerprint == "gpt2") == (vocab == 50304)


def test_a_gpt2_is_a_start_and_a_teacher_by_its_name(run, tiny, token_folder, trained, tmp_path, monkeypatch):
    """It is imported into out/ once, and then found there. A start of a shorter block takes the first
    positions. Another model of that name is refused."""
    monkeypatch.setattr(importer, "WORK", tmp_path)
    mine, path = load_model(trained)[0], tmp_path / "theirs"
    to_gpt2(mine.trunk, path)
    put_tokenizer(path, token_folder)
    x = torch.randint(VOCAB, (3, T), generator=torch.Generator().manual_seed(1))
    log_p = mine.log_probs(x)
    start = tiny(init_from=str(path), max_steps=1, learning_rate=0.0, min_lr=0.0, block_size=8)
    assert run(start) == 0
    begun = load_model(start.out_dir)[0].log_probs(x[:, :8])
    torch.testing.assert_close(begun, log_p[:, :8], atol=1e-4, rtol=0)
    made = Run(tmp_path / "out" / "theirs")
    assert made.config.init_from == str(path) and made.config.trunk == "gpt"
    taught = dict(head="sigmoid", labels="soft", candidates=3, teacher=str(path), max_steps=1)
    assert run(tiny(**taught, out_dir=str(tmp_path / "student"))) == 0
    student = Run(tmp_path / "student").config
    assert student.teacher_weights == weights_digest(made.path) and student.teacher_spent == {}
    transformers_model().save_pretrained(path)
    with pytest.raises(ValueError, match="theirs"):
        find_run(str(path))


def test_as_many_tokens_are_not_the_same_tokens(run, tiny, trained, token_folder, tmp_path):
    """A model whose tokenizer has other tokens, as many of them, neither starts nor teaches."""
    other = prepare_folder(tmp_path / "other", f"bpe{VOCAB}", seed=9)
    theirs, ours = (open_tokens(f / "train.bin").info["fingerprint"] for f in (other, token_folder))
    assert theirs != ours
    transformers_model().save_pretrained(tmp_path / "gpt2")
    put_tokenizer(tmp_path / "gpt2", other)
    path = tmp_path / "run"
    importer.import_model(str(tmp_path / "gpt2"), path)
    labels = dict(head="sigmoid", labels="soft", candidates=3)
    for key, wrong in (("init_from", {}), ("teacher", labels)):
        with pytest.raises(ValueError, match=key):
            run(tiny(**wrong, **{key: str(path)}))
    with pytest.raises(ValueError, match="tokenizer"):
        eval_diversity.main([str(trained), f"theirs={path}"])


@pytest.mark.slow
def test_gpt2s_size_is_not_gpt2(tmp_path):
    """A vocabulary of 50,257 tokens of its own beside the weights is not GPT-2's."""
    if not os.environ.get("TIKTOKEN_CACHE_DIR"):
        pytest.skip("set TIKTOKEN_CACHE_DIR to a folder with tiktoken's gpt2 files")
    beside = lambda: importer.tokenizer_beside(str(tmp_path), 50257).fingerprint
    assert beside() == "gpt2"  # assumed
    words = WordTokenizer.of([f"w{i}" for i in range(50257)])
    words.save(tmp_path)
    assert beside() == words.fingerprint
    portable(GPT2Tokenizer()).save(str(tmp_path / "tokenizer.json"))
    assert beside() == "gpt2"


class Harm:
    def __init__(self, at: Path):
        self.at = at

    def __reduce__(self):
        return Path.touch, (self.at,)


def test_what_is_no_model_is_refused(tmp_path):
    nano, out = tmp_path / "nano" / "ckpt.pt", tmp_path / "out"
    nanogpt_file(nano.parent)
    with pytest.raises(ValueError, match="ckpt.pt.*tokenizer.json"):  # 300 tokens, of which none is known
        importer.import_model(str(nano), out)
    saved = torch.load(nano, weights_only=True)
    for wrong in (
        {"model_args": {**saved["model_args"], "n_layer": 10**12}},
        {"model_args": {**saved["model_args"], "n_head": "x"}},
        {"model": {}},
        {"model": saved["model"] | {"_orig_mod.lm_head.weight": torch.zeros(VOCAB, C)}},
        {"config": Harm(tmp_path / "harm")},
    ):
        torch.save(saved | wrong, nano)
        with pytest.raises(ValueError, match="ckpt.pt"):
            importer.import_model(str(nano), out)
    for name in ("x.pt", "x.gguf"):
        (tmp_path / name).write_text("no checkpoint")
        with pytest.raises(ValueError, match=name):
            importer.import_model(str(tmp_path / name), out)
    assert not (tmp_path / "harm").exists() and not out.exists()
