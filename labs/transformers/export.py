"""Writes a run's best checkpoint as a folder that transformers reads, with its tokenizer and a model card.

    python labs/transformers/export.py out/baseline FOLDER
    python labs/transformers/export.py out/baseline FOLDER --push=USER/NAME [--dry_run]

A plain softmax that reads from left to right becomes a GPT2LMHeadModel. Any other run takes its code along:
AutoModelForCausalLM.from_pretrained("FOLDER", trust_remote_code=True). --push sends the folder to the Hugging
Face hub. See README.md beside this file.
"""

import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import HfApi, get_token
from tokenizers import Regex, pre_tokenizers, processors

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.config import Draws, Seed, cli, read
from common.errors import UserError
from common.files import unfinished
from common.hub import endpoint
from common.places import CODE
from data.open import tokenizer_of
from data.tokenizers import LINE, BPETokenizer, ByteTokenizer, FileTokenizer, GPT2Tokenizer, Tokenizer
from evaluate.settings import run_seed
from heads import Projection, Softmax
from labs.transformers.card import card
from labs.transformers.folder import to_transformers
from labs.transformers.gpt2 import to_gpt2
from labs.transformers.tokenizer_files import BYTE_255, portable
from labs.transformers.trunk import Pretrained, longest_text, to_causal
from model import GPT, LanguageModel, Trunk
from training.checkpoint import writing
from training.run import load_model


@dataclass
class ExportConfig:
    # fmt: off
    run: str                 # the out folder of a training run, or one checkpoint in it
    folder: str              # the new folder
    samples: Draws = 8       # weight draws of a Bayesian projection, stored in the folder
    seed: Seed = 1337        # of these draws: eval_diversity.py's and sample.py's with the same two options
    gpt2: bool = False       # without code, of any softmax, which then trains on by softmax's own loss
    push: str = ""           # USER/NAME of the public model on the Hugging Face hub that the folder becomes
    private: bool = False    # one that its user alone sees
    dry_run: bool = False    # with --push: write the folder and print what would be sent
    # fmt: on

    def __post_init__(self) -> None:
        if self.push and not re.fullmatch(r"[\w.-]+/[\w.-]+", self.push):
            raise UserError(f"push = {self.push!r}: give USER/NAME of a model on the hub")
        for key in ("private", "dry_run"):
            if getattr(self, key) and not self.push:
                raise UserError(f"{key} = True without --push: give USER/NAME of the model on the hub, too")


ENDOFTEXT, GPT2_END = "<|endoftext|>", 50256  # GPT-2's
PAD = "<|pad|>"  # of the id V, for which a GPT2LMHeadModel has no embedding


def push(folder: str | Path, name: str, private: bool = False) -> str:
    """Sends a folder to the hub, as the model USER/NAME; its address. A model of that name gets a new commit.
    UserError where the hub does not take it."""
    api, token = HfApi(endpoint=endpoint()), get_token()
    try:
        api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Export of nanoHeads")
    except Exception as error:  # its client raises many kinds; the user needs one line of them
        why = " ".join(str(error).replace(token or "\0", "TOKEN").split()) or type(error).__name__
        raise UserError(f"{endpoint()} did not take {name}: {why}; the folder {folder} is whole") from None
    return f"{endpoint()}/{name}"


def is_gpt2(model: LanguageModel, any_loss: bool = False) -> bool:
    """Whether GPT-2 computes the model's distribution and its training loss, or `any_loss`: one softmax of a
    plain projection, a tied one."""
    trunk, head, projection = model.trunk, model.head.head, model.head.projection
    kept = Softmax.link, Softmax.log_probs
    plain_softmax = isinstance(head, Softmax) and (type(head).link, type(head).log_probs) == kept
    plain_softmax &= not head.cosine and (any_loss or type(head) is Softmax)
    plain = projection.bias is None and type(projection) is Projection
    tied = projection.weight is trunk.embedding
    return type(trunk) is GPT and plain_softmax and plain and tied


def special_tokens(tokenizer: Tokenizer, trunk: Trunk) -> tuple[str, str, str]:
    """(the token that begins a text, the one that ends it, the one that pads), to which no text is encoded;
    "" where there is none.

    Those of a pretrained trunk's configuration, as far as its tokenizer calls them special; else by their
    names. A byte-level BPE pads with the byte 255. Words are all of them in texts.
    """
    if isinstance(tokenizer, GPT2Tokenizer):
        return (ENDOFTEXT,) * 3
    if isinstance(tokenizer, FileTokenizer):
        special = {t["id"]: t["content"] for t in tokenizer.content.get("added_tokens", []) if t["special"]}
        theirs = trunk.model.config if isinstance(trunk, Pretrained) else None
        bos, eos, pad = (getattr(theirs, f"{kind}_token_id", None) for kind in ("bos", "eos", "pad"))
        eos = eos[0] if isinstance(eos, list) else eos
        ends = [t for t in special.values() if re.search(r"end_?of_?text|eos|</s>", t.lower())]
        pads = [t for t in special.values() if "pad" in t.lower()]
        end = special.get(eos, (ends or [""])[0])
        pad = special.get(pad, (pads or [*special.values()] or [""])[0])
        return special.get(bos, end or pad), end, pad
    pad = BYTE_255 if isinstance(tokenizer, (BPETokenizer, ByteTokenizer)) else ""
    return pad, "", pad


def save_tokenizer(
    tokenizer: Tokenizer, folder: Path, context: int, special: tuple[str, str, str], start: int
) -> None:
    """Writes the tokenizer for AutoTokenizer, which never reads a special token out of a text and puts the id
    `start`, if there is one, before it. Prints a line where GPT-2's own files are not to be had."""
    try:
        model = portable(tokenizer)
    except FileNotFoundError as e:
        print(f"the folder has no tokenizer ({e}): AutoTokenizer.from_pretrained('gpt2') is the one")
        return
    if isinstance(tokenizer, GPT2Tokenizer):
        # it has tokens of two line ends, and no text that a run of ours has read has one: see ids_of
        lines = pre_tokenizers.Split(Regex(LINE), "isolated")
        model.pre_tokenizer = pre_tokenizers.Sequence([lines, model.pre_tokenizer])
    if special[2] == PAD:
        model.add_special_tokens([PAD])
    if start >= 0:
        first = model.id_to_token(start)
        model.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, start)]
        )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # a name that versions 4 and 5 know
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": context,
        "padding_side": "left",
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        **{key: token for key, token in zip(("bos_token", "eos_token", "pad_token"), special) if token},
    }
    model.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


@torch.no_grad()
def export(
    path: str | Path,
    folder: str | Path,
    samples: int = 8,
    seed: int = 1337,
    gpt2: bool = False,
    home: str = "FOLDER",
) -> None:
    """Writes a run's best checkpoint as a folder for transformers, see ExportConfig. `home`: where its card
    says that it is loaded from.

    UserError if none can compute it: another trunk, or with `gpt2` another distribution than a softmax.
    """
    folder = Path(folder)
    if folder.exists():
        raise UserError(f"{folder} exists: give the name of a new folder")
    model, ckpt = load_model(path)
    trunk, config = model.trunk, ckpt.record
    if not isinstance(trunk, GPT | Pretrained):
        raise UserError(f"{ckpt.path}: trunk = {config['trunk']!r} is not of GPT-2's kind")
    tokenizer, aside, plain = tokenizer_of(ckpt), unfinished(folder), is_gpt2(model, gpt2)
    bos, end, pad = special_tokens(tokenizer, trunk)
    with writing(aside, f"could not write {folder}"):
        if isinstance(trunk, Pretrained) and (gpt2 or type(model.head.head).loss is Softmax.loss):
            plain = to_causal(model, aside)
        if gpt2 and not plain:
            raise UserError(f"{ckpt.path}: no model without code has its distribution: leave out --gpt2")
        special = bos, end or pad, pad if plain else PAD
        if plain and isinstance(trunk, GPT):
            for p in trunk.ln_f.parameters():  # GPT-2 has no gain; the last LayerNorm can have it
                p.mul_(model.head.gain)
            to_gpt2(trunk, aside, id_of(end, tokenizer), id_of(pad, tokenizer))
        elif not plain:
            to_transformers(model, config, aside, id_of(end, tokenizer), samples, run_seed(seed, config))
            shutil.copy(CODE / "LICENSE", aside)  # of the code
        context = trunk.context - (getattr(trunk, "kind", "") == "masked")  # as NanoHeadsForCausalLM has it
        if isinstance(trunk, Pretrained):
            context = longest_text(trunk.model.config)
        save_tokenizer(tokenizer, aside, context, special, getattr(trunk, "start_token", -1))
        (aside / "README.md").write_text(card(ckpt, plain, samples, seed, home), encoding="utf-8")
    try:
        aside.rename(folder)
    except OSError:  # another export has made it
        shutil.rmtree(aside)
        raise


def id_of(token: str, tokenizer: Tokenizer) -> int | None:
    """None for no token, at which `generate` then does not stop."""
    return GPT2_END if isinstance(tokenizer, GPT2Tokenizer) else tokenizer.model.token_to_id(token)


def main(argv: list[str]) -> int:
    c = read(ExportConfig, argv, __doc__)
    if c.push and not c.dry_run and not get_token():
        raise UserError("the hub takes a model with a token: run `hf auth login`, or set HF_TOKEN")
    export(c.run, c.folder, c.samples, c.seed, c.gpt2, c.push or "FOLDER")
    print(f"wrote {c.folder}")
    if c.dry_run:
        print(f"would send to {endpoint()}/{c.push}:")
        for path in sorted(path for path in Path(c.folder).rglob("*") if path.is_file()):
            print(f"  {path.stat().st_size:>12,} bytes  {path.relative_to(c.folder).as_posix()}")
        print("", (Path(c.folder) / "README.md").read_text(encoding="utf-8"), sep="\n")
    elif c.push:
        print(f"sent to {push(c.folder, c.push, c.private)}")
    return 0


if __name__ == "__main__":
    cli(main)
