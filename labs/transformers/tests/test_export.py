"""A run as a transformers folder: what transformers computes and writes from it is what we do."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest
import tiktoken
import torch
from torch.nn.functional import pad
from transformers import AutoConfig, AutoTokenizer, GPT2LMHeadModel

from common.errors import UserError
from common.places import registered
from data import tokenizers
from data.open import load_tokenizer
from data.prepare.bpe import train_bpe
from evaluate.decoding import Decoding
from evaluate.metrics import bits_per_byte, perplexity
from evaluate.scoring import score, with_epsilon
from labs.transformers import card, export
from labs.transformers.tests.exports import cache_of_code, exported, loaded, ones, texts, write_run  # noqa: F401
from labs.transformers.tokenizer_files import exported_tokenizer
from labs.transformers.trunk import Pretrained
from model import Trunk
from sample import generate
from tables.store import Store
from tests.fixtures import VOCAB, synthetic_text
from training.checkpoint import weights_digest
from training.optimizer import make_optimizer

HARNESS = Path(export.__file__).with_name("harness")
ROWS = {
    "plain": dict(head="softmax", gain=3.0),  # a GPT2LMHeadModel; the others take their code along
    "sigmoid": dict(head="sigmoid", tied=False),
    "entmax15": dict(head="entmax15", gain=2.0),  # exact zeros
    "perturb_max": dict(head="perturb_max", learn_gain=True, gain=3.0),
    "bayesian": dict(head="sigsoftmax", bayesian=True, prior_sigma=0.1, gain=4.0),
    "modern": dict(head="softmax", trunk="modern", tied=False, gain=3.0),
    "random": dict(head="softmax", trunk="any_order", trunk_args={"sinusoidal": True}, gain=4.0),
    "fractal": dict(head="am_softmax", trunk="any_order", trunk_args={"order": "fractal"}, bayesian=True),
}
TRUNKS = registered("model", "TRUNKS", "trunk")
ROWS = {name: c for name, c in ROWS.items() if c.get("trunk", "gpt") in TRUNKS}  # the labs that there are


@pytest.fixture(scope="module", params=ROWS)
def row(request, token_folder, tmp_path_factory):
    return exported(tmp_path_factory.mktemp("row"), token_folder, **ROWS[request.param])


@torch.no_grad()
def test_logits_are_our_log_probs(row):
    _, theirs, ours, draws = row
    plain = isinstance(theirs, GPT2LMHeadModel)
    assert plain == export.is_gpt2(ours)
    x = texts(3, ours.trunk.context)
    got, want = theirs(x, labels=x), ours.log_probs(x, draws)
    log_p = got.logits.log_softmax(-1) if plain else got.logits
    torch.testing.assert_close(log_p.exp(), want.exp(), atol=1e-6, rtol=1e-4)
    scores = with_epsilon(want, VOCAB) if ours.head.head.sparse else want
    torch.testing.assert_close(got.loss, -scores[:, :-1].gather(2, x[:, 1:, None]).mean())
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


def test_text_ends_at_a_stop_string(row):
    """generate leaves its tokenizer among the model's arguments; it heals prompts with it, too."""
    folder, theirs, *_ = row
    tokenizer, x = AutoTokenizer.from_pretrained(folder), texts(1, 4)
    a, b = (tokenizer.convert_tokens_to_ids(letter) for letter in "ab")
    how = dict(max_new_tokens=6, tokenizer=tokenizer, do_sample=False)
    only = lambda _, ids: [b if len(ids) < 6 else a]
    text = theirs.generate(x, stop_strings=["a"], prefix_allowed_tokens_fn=only, **how)
    assert text[0, 4:].tolist() == [b, b, a]
    prompt = tokenizer("the th", return_tensors="pt")["input_ids"]
    assert theirs.generate(prompt, token_healing=True, **how).shape == (1, prompt.shape[1] + 6)


HEADS_TO_TRAIN = ["softmax", "label_smoothing", "sigmoid", "gs_softmax_f1", "entmax15", "taylor"]
HEADS_TO_TRAIN += ["sampled_softmax"]  # with all tokens: a folder has no frequencies


@pytest.mark.parametrize("head", HEADS_TO_TRAIN)
def test_a_step_of_the_trainer_is_ours(head, token_folder, tmp_path):
    """In two micro-batches of unlike numbers of labels, each layer computed again in the backward pass."""
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    folder, _, ours, _ = exported(tmp_path, token_folder, head=head, gain=2.0, tied=head != "softmax")
    theirs = loaded(folder, attn_implementation="sdpa")
    x = texts(4, 16)
    labels = x.clone()
    labels[:, 0] = labels[1, 5:] = labels[3, 2:4] = -100
    rows = [{"input_ids": tokens, "labels": following} for tokens, following in zip(x, labels)]
    how = dict(max_steps=1, per_device_train_batch_size=2, gradient_accumulation_steps=2, report_to=[])
    how |= dict(gradient_checkpointing=True, max_grad_norm=1.0, use_cpu=True)
    args = TrainingArguments(tmp_path / "out", save_strategy="no", disable_tqdm=True, **how)
    make = lambda model: make_optimizer(model, "adamw", 1e-3, (0.9, 0.99), 0.1)
    trainer = Trainer(theirs, args, train_dataset=rows, eval_dataset=rows, optimizers=(make(theirs.lm), None))
    trainer.create_scheduler = lambda *_, **__: None
    trainer.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(trainer.optimizer, 1.0)
    want = scored(ours, x, labels)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(want, abs=1e-5)
    minimised = trainer.train().training_loss

    optimizer = make(ours.train().requires_grad_(True))
    targets = pad(labels, (0, 1), value=-100)[:, 1:]
    total, count = ours(x, targets.masked_fill(targets == -100, -1))
    (total / count).backward()
    torch.nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
    optimizer.step()
    assert minimised == pytest.approx((total / count).item(), abs=1e-5)
    trained = dict(theirs.lm.named_parameters())
    for name, p in ours.named_parameters():
        other = trained.get(name, theirs.lm.head.projection.weight)  # a tied one has one name there
        torch.testing.assert_close(other, p, atol=1e-5, rtol=0)


def scored(model, x, labels):
    """Mean of -log p, in float64, or of what PPL_eps has in its place where p has exact zeros."""
    targets = pad(labels, (0, 1), value=-100)[:, 1:]
    log_p = model.log_probs(x)[targets >= 0].gather(1, targets[targets >= 0][:, None]).double()
    return -(with_epsilon(log_p, VOCAB) if model.head.head.sparse else log_p).mean().item()


def test_draws_do_not_train(token_folder, tmp_path):
    theirs = exported(tmp_path, token_folder, **ROWS["bayesian"])[1]
    with pytest.raises(ValueError, match="train"):
        theirs.train()(texts(1, 4), labels=texts(1, 4))


def test_gpt2_computes_a_softmax_whatever_its_loss_was(token_folder, tmp_path):
    write_run(tmp_path / "run", token_folder, head="label_smoothing")
    assert export.main([str(tmp_path / "run"), str(tmp_path / "hf"), "--gpt2"]) == 0
    assert isinstance(loaded(tmp_path / "hf"), GPT2LMHeadModel)


@torch.no_grad()
def test_what_transformers_saves_loads_again(row, tmp_path):
    folder, theirs, _, _ = row
    theirs.save_pretrained(tmp_path / "again")
    x = texts(2, 8)
    assert torch.equal(loaded(tmp_path / "again")(x).logits, theirs(x).logits)
    assert {p.name for p in folder.glob("*.py")} == {p.name for p in (tmp_path / "again").glob("*.py")}


def test_the_code_imports_itself_and_nothing_that_is_not_there(row):
    """As transformers checks it on the hub: every import outside of a `try`. Before 5.23 it copies what the
    one file imports."""
    from transformers.dynamic_module_utils import get_imports, get_relative_imports

    folder = row[0]
    files = {path.name for path in folder.glob("*.py")}
    assert (folder / "custom_generate" / "generate.py").is_file() == hasattr(row[2].trunk, "fills")
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


def test_special_tokens(tmp_path):
    """By their names, or as a pretrained model's configuration has them."""
    model, trunk = tokenizers.byte_level(tokenizers.byte_vocab()), Trunk()
    assert export.special_tokens(tokenizers.BPETokenizer(model), trunk) == ("\u00ff", "", "\u00ff")
    assert export.special_tokens(tokenizers.WordTokenizer.of(["a", "b"]), trunk) == ("", "", "")
    assert export.special_tokens(tokenizers.GPT2Tokenizer(), trunk) == ("<|endoftext|>",) * 3
    model.add_special_tokens(["<s>", "</s>", "[PAD]", "<|im_end|>"])
    model.save(str(tmp_path / "tokenizer.json"))
    tokenizer = exported_tokenizer(tmp_path / "tokenizer.json")
    assert export.special_tokens(tokenizer, trunk) == ("</s>", "</s>", "[PAD]")
    assert export.id_of("</s>", tokenizer) == 257 and "-" in tokenizer.name  # by its content, not bpe260
    chat = AutoConfig.for_model("llama", bos_token_id=256, eos_token_id=[259, 257], pad_token_id=300)
    pretrained = create_autospec(Pretrained, instance=True, model=SimpleNamespace(config=chat))
    assert export.special_tokens(tokenizer, pretrained) == ("<s>", "<|im_end|>", "[PAD]")


def saved_tokenizer(tokenizer, folder: Path):
    export.save_tokenizer(
        tokenizer, folder, 16, (*export.special_tokens(tokenizer, Trunk())[:2], export.PAD), -1
    )
    return AutoTokenizer.from_pretrained(folder)


def test_an_exported_tokenizer_is_the_same_one(tmp_path):
    words = tokenizers.WordTokenizer.of(["\n", "a", "class", "##b"])
    for tokenizer in (train_bpe(["hello world, hello words"] * 5, 262), tokenizers.ByteTokenizer(), words):
        export.save_tokenizer(tokenizer, tmp_path, 16, export.special_tokens(tokenizer, Trunk()), -1)
        again = exported_tokenizer(tmp_path / "tokenizer.json")
        assert again.fingerprint == tokenizer.fingerprint and type(again) is type(tokenizer)
        assert tokenizers.read_tokenizer(tmp_path / "tokenizer.json").vocab_size == again.vocab_size
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
    mine = tokenizers.GPT2Tokenizer()
    encoding = tiktoken.Encoding("few", pat_str=pattern, mergeable_ranks=ranks, special_tokens=end)
    vars(mine)["encoding"] = encoding
    theirs = saved_tokenizer(mine, tmp_path)
    text = "the other, there's  three\n\n\n the ünï 12 <|endoftext|> \n"
    ids = tokenizers.ids_of(text, mine)
    assert theirs.encode(text) == ids != mine.encode(text) and theirs.decode(ids) == text
    assert (theirs.eos_token_id, theirs.bos_token_id, theirs.pad_token_id) == (262, 262, 263)


def test_the_card_has_the_row_of_these_weights(token_folder, tmp_path, monkeypatch):
    write_run(tmp_path / "run", token_folder, head="softmax", dropout=0.25, bayesian=True)
    write_run(tmp_path / "tuned", token_folder, head="softmax", init_from="out/other", init_weights="5ta27")
    settings = dict(split="test", texts=4, prompt_tokens=6, new_tokens=8, temperature=1.0, seed=0)
    measured = {"measure": "text", "definition": 1, "settings": settings, "name": "run", "ppl_tok": 12.345}
    measured["weights_sha256"] = weights_digest(tmp_path / "run" / "best")
    Store(tmp_path / "results" / "one.jsonl").put([measured])
    monkeypatch.setattr(card, "WORK", tmp_path)
    export.export(tmp_path / "run", tmp_path / "hf")
    text = (tmp_path / "hf" / "README.md").read_text()
    assert re.search(r"\| PPL_tok \| 12.3[45] \|", text) and "license: cc-by-sa-3.0" in text
    assert "the corpus' test split" in text and "a part of" not in text
    export.export(tmp_path / "tuned", tmp_path / "tuned_hf")  # of a licence that the start has, too
    tuned = (tmp_path / "tuned_hf" / "README.md").read_text()
    assert "5ta27" in tuned and "license:" not in tuned
    assert '"dropout": 0.25' in (tmp_path / "hf" / "config.json").read_text()


@pytest.mark.parametrize(
    "flags, names",
    [
        (["{run}", "{run}"], "exists"),
        (["{cut}", "{new}"], "progress.json"),
        (["{run}", "{new}", "--push=somebody/model"], "HF_TOKEN"),
    ],
)
def test_what_cannot_be_exported_leaves_nothing(token_folder, tmp_path, monkeypatch, flags, names):
    monkeypatch.setattr(export, "get_token", lambda: None)
    for name in ("run", "cut"):
        write_run(tmp_path / name, token_folder, head="softmax")
    (tmp_path / "cut" / "best" / "progress.json").write_text("{")
    with pytest.raises(UserError, match=names):
        export.main([f.format(**{n: tmp_path / n for n in ("run", "cut", "new")}) for f in flags])
    assert {path.name for path in tmp_path.iterdir()} == {"run", "cut"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({"plain", "sigmoid", "random"} & ROWS.keys()))
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
        task_manager=TaskManager(include_path=str(HARNESS), metadata=about),
        device="cpu",
        batch_size=4,
        metadata=about,
    )
    got = done["results"]["nanoheads_wikitext103"]
    nll = score(ours, torch.tensor([prefix, *tokenizer.encode(text.removeprefix(blank))]).numpy()).nll
    assert got["bits_per_byte,none"] == pytest.approx(bits_per_byte(nll, len(text.encode())), rel=1e-6)
    words = len(text.split()) + text.count("\n")
    assert got["word_perplexity,none"] == pytest.approx(perplexity(nll, words), rel=1e-6)


class Hub:
    """What of huggingface_hub sends a model."""

    def __init__(self, endpoint):
        self.sent = Hub.sent = {}

    def create_repo(self, name, **how):
        self.sent |= {"name": name, **how}

    def upload_folder(self, repo_id, folder_path, commit_message):
        if self.sent["private"]:
            raise RuntimeError("no room for hf_secret")
        self.sent["files"] = {p.relative_to(folder_path) for p in Path(folder_path).rglob("*") if p.is_file()}


def test_a_folder_is_pushed_to_the_hub(trained, tmp_path, monkeypatch):
    """A hub that refuses leaves the folder; the token is not printed."""
    monkeypatch.setattr(export, "HfApi", Hub)
    monkeypatch.setattr(export, "get_token", lambda: "hf_secret")
    command = lambda name, *more: [str(trained), str(tmp_path / name), "--push=somebody/model", *more]
    assert export.main(command("sent")) == 0 and Hub.sent["name"] == "somebody/model"
    assert {Path("model.safetensors"), Path("README.md"), Path("tokenizer.json")} < Hub.sent["files"]
    text = (tmp_path / "sent" / "README.md").read_text()
    assert 'AutoModelForCausalLM.from_pretrained("somebody/model")' in text
    with pytest.raises(UserError, match="no room for TOKEN"):
        export.main(command("kept", "--private"))
    assert (tmp_path / "kept" / "config.json").is_file()
    Hub.sent = None
    assert export.main(command("dry", "--dry_run")) == 0 and Hub.sent is None
    assert (tmp_path / "dry" / "model.safetensors").is_file()
