"""GPT-2s of other programs, transformers' and nanoGPT's: as a start, as a teacher and as a row of a table."""

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import augment
import eval_diversity
import report
import sample
from data.tokenizers import GPT2Tokenizer, WordTokenizer
from data.tokens import open_tokens
from evaluate.store import Store
from tests.fixtures import VOCAB, prepare_folder
from training.gpt2 import to_gpt2
from training.run import load_model, open_run

T, C = 16, 32


def transformers_model(vocab: int = VOCAB):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(7)
    size = dict(vocab_size=vocab, n_positions=T, n_layer=1, n_head=2, n_embd=C)
    return GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0, initializer_range=0.3)).eval()


class NanoBlock(nn.Module):
    """nanoGPT's, by its own names (github.com/karpathy/nanoGPT, model.py)."""

    def __init__(self, bias: bool):
        super().__init__()
        self.ln_1, self.ln_2 = (nn.LayerNorm(C, bias=bias) for _ in range(2))
        self.attn, self.mlp = nn.Module(), nn.Module()
        self.attn.c_attn, self.attn.c_proj = nn.Linear(C, 3 * C, bias), nn.Linear(C, C, bias)
        self.mlp.c_fc, self.mlp.c_proj = nn.Linear(C, 4 * C, bias), nn.Linear(4 * C, C, bias)

    def forward(self, x):
        q, k, v = (
            part.unflatten(2, (2, C // 2)).transpose(1, 2)
            for part in self.attn.c_attn(self.ln_1(x)).split(C, dim=2)
        )
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


CASES = [(VOCAB, True, True), (50304, True, False), (50304, False, False)]


@pytest.mark.parametrize("vocab, bias, compiled", CASES)
def test_nanogpt(tmp_path, token_folder, vocab, bias, compiled):
    """Compiled or not, without biases, of GPT-2's padded vocabulary. Its GELU is the exact one."""
    path, known = tmp_path / "nano" / "ckpt.pt", min(vocab, 50257)
    model = nanogpt_file(path.parent, vocab, bias, compiled)
    if vocab == VOCAB:
        put_tokenizer(path.parent, token_folder)
    x = torch.randint(known, (3, T), generator=torch.Generator().manual_seed(1))
    ours, ckpt = load_model(path)
    log_p = model(x).detach()[..., :known].log_softmax(-1)
    torch.testing.assert_close(ours.log_probs(x), log_p, atol=2e-3, rtol=0)
    assert ckpt.foreign and ckpt.config.name == "ckpt" and ckpt.config.vocab_size == known
    assert (ckpt.config.tokenizer_fingerprint == "gpt2") == (vocab == 50304)


def test_a_foreign_model_is_a_start_a_teacher_and_a_row(run, tiny, token_folder, trained, tmp_path):
    """A start of a shorter block takes the first positions."""
    mine, path = load_model(trained)[0], tmp_path / "theirs"
    to_gpt2(mine.trunk, path)
    put_tokenizer(path, token_folder)
    x = torch.randint(VOCAB, (3, T), generator=torch.Generator().manual_seed(1))
    log_p = mine.log_probs(x)
    start = tiny(init_from=str(path), max_steps=1, learning_rate=0.0, min_lr=0.0, block_size=8)
    assert run(start) == 0
    begun = load_model(start.out_dir)[0].log_probs(x[:, :8])
    torch.testing.assert_close(begun, log_p[:, :8], atol=1e-4, rtol=0)
    tokens = open_tokens(token_folder / "train.bin")
    teacher = augment.Teacher(tiny(teacher=str(path)), tokens)
    torch.testing.assert_close(teacher.model.log_probs(x), log_p, atol=1e-4, rtol=0)
    flags = [f"--out={tmp_path / 't'}", "--texts=8", "--prompt_tokens=4", "--new_tokens=12", "--device=cpu"]
    assert eval_diversity.main([str(trained), f"theirs={path}", *flags]) == 0
    mine, theirs, *_ = Store(tmp_path / "t.jsonl").rows("text")
    assert mine["training"] and "training" not in theirs and "step" not in theirs
    assert len(theirs["weights_sha256"]) == 64
    assert theirs["ppl_tok"] == pytest.approx(mine["ppl_tok"], rel=1e-4)
    alone = [str(path), *flags[1:]]
    with pytest.raises(ValueError, match="--data"):
        eval_diversity.main(alone)
    assert eval_diversity.main([*alone, f"--data={token_folder}"]) == 0
    assert sample.main([str(path), "--length=3", "--device=cpu", "--prompt=e"]) == 0
    shown = ["--prompts=1", "--prompt_tokens=4", "--new_tokens=4", f"--out={tmp_path / 'r.html'}"]
    assert report.main([str(trained), f"theirs={path}", *shown, "--device=cpu"]) == 0


def test_as_many_tokens_are_not_the_same_tokens(run, tiny, trained, token_folder, tmp_path):
    """A folder whose tokenizer has other tokens, as many of them, neither starts nor teaches."""
    other = prepare_folder(tmp_path / "other", f"bpe{VOCAB}", seed=9)
    theirs, ours = (open_tokens(f / "train.bin").info["fingerprint"] for f in (other, token_folder))
    assert theirs != ours
    transformers_model().save_pretrained(tmp_path / "gpt2")
    put_tokenizer(tmp_path / "gpt2", other)
    nanogpt_file(tmp_path / "gpt2")
    labels = dict(head="sigmoid", labels="soft", candidates=3)
    for path in (tmp_path / "gpt2", tmp_path / "gpt2" / "ckpt.pt"):
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
    transformers_model(50257).save_pretrained(tmp_path)
    assert open_run(tmp_path).config.tokenizer_fingerprint == "gpt2"  # there is none: assumed
    words = WordTokenizer.of([f"w{i}" for i in range(50257)])
    words.save(tmp_path)
    assert open_run(tmp_path).config.tokenizer_fingerprint == words.fingerprint
    GPT2Tokenizer().portable().save(str(tmp_path / "tokenizer.json"))
    assert open_run(tmp_path).config.tokenizer_fingerprint == "gpt2"


class Harm:
    def __init__(self, at: Path):
        self.at = at

    def __reduce__(self):
        return Path.touch, (self.at,)


def test_what_is_no_model_is_refused(tmp_path):
    nano = tmp_path / "nano" / "ckpt.pt"
    nanogpt_file(nano.parent)
    with pytest.raises(ValueError, match="ckpt.pt.*tokenizer.json"):  # 300 tokens, of which none is known
        open_run(nano)
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
            open_run(nano)
    (tmp_path / "x.pt").write_text("no checkpoint")
    with pytest.raises(ValueError, match="x.pt"):
        open_run(tmp_path / "x.pt")
    assert not (tmp_path / "harm").exists()
