"""Any base model of transformers as a trunk, `trunk = "transformers"`: import.py makes runs of them."""

import inspect
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from model import GPTConfig, LanguageModel, Trunk

TOLERANCE = 1e-3  # of log p: float32 in another order of sums


class TheirCache:
    """transformers' keys and values of the tokens already read, `length` of them."""

    def __init__(self, config: Any):
        self.config, self.length = config, 0

    @property
    def length(self) -> int:
        return self.kept.get_seq_length()

    @length.setter
    def length(self, tokens: int) -> None:
        """Begins anew: the one number of tokens that can be set is 0."""
        from transformers import DynamicCache

        assert tokens == 0
        self.kept = DynamicCache(config=self.config)


class Pretrained(Trunk):
    """Tokens -> the hidden states (B, T, C) of transformers' base model, after its final norm.

    architecture   its config.json
    start_token    stands before every text, as its tokenizer would put it; -1: none
    freeze         so many of the first layers, and the token embedding, are not trained
    checkpointing  each layer is computed again in the backward pass, which takes less memory
    """

    def __init__(
        self,
        config: GPTConfig,
        architecture: dict | None = None,
        start_token: int = -1,
        freeze: int = 0,
        checkpointing: bool = False,
    ):
        super().__init__()
        from transformers import AutoConfig, AutoModel  # seconds to import

        if not architecture:
            raise ValueError("the trunk 'transformers' needs trunk_args.architecture: --init_from=RUN has it")
        if config.dropout:
            raise ValueError(f"dropout = {config.dropout}: the trunk 'transformers' has its own")
        theirs: Any = AutoConfig.for_model(**architecture)
        if theirs.num_hidden_layers != config.n_layer:  # whose size the configuration's reader has bounded
            raise ValueError(f"n_layer = {config.n_layer}: it has {theirs.num_hidden_layers} layers")
        self.config, self.start_token = config, start_token
        self.model: Any = AutoModel.from_config(theirs, dtype=torch.float32)
        rows, longest = len(self.embedding), longest_text(theirs) - (start_token >= 0)
        if config.vocab_size > rows or config.block_size > longest:
            asked = f"vocab_size = {config.vocab_size}, block_size = {config.block_size}"
            found = f"this {theirs.model_type} has {rows} tokens and reads {longest} at once"
            raise ValueError(f"{asked}: {found}")
        names = inspect.signature(self.model.forward).parameters
        # transformers 5.24 renamed it. Models without attention have another cache, or none
        self.cache_name = next((name for name in ("past_key_values", "cache") if name in names), "")
        if checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        if freeze:
            self.embedding.requires_grad_(False)
            layers = next(m for m in self.model.modules() if isinstance(m, nn.ModuleList))
            if freeze > len(layers):
                raise ValueError(f"freeze = {freeze}: this {theirs.model_type} has {len(layers)} layers")
            layers[:freeze].requires_grad_(False)

    @property
    def embedding(self) -> nn.Parameter:
        return self.model.get_input_embeddings().weight

    def new_readout(self) -> nn.Parameter:
        weight = torch.empty(len(self.embedding), self.config.n_embd).normal_(0.0, 0.02)
        weight[self.config.vocab_size :] = 0
        return nn.Parameter(weight)

    def new_cache(self, batch: int, dtype: torch.dtype, size: int) -> TheirCache | None:
        return TheirCache(self.model.config) if self.cache_name else None

    def forward(
        self, tokens: Tensor, positions: Tensor | None = None, cache: TheirCache | None = None
    ) -> Tensor:
        """Hidden states (B, T, C) of `tokens` (B, T), from left to right after what `cache` holds."""
        first = self.start_token >= 0 and not (cache and cache.length)
        if first:
            tokens = F.pad(tokens, (1, 0), value=self.start_token)
        kept = {self.cache_name: cache.kept} if cache else {}
        hidden = self.model(input_ids=tokens, use_cache=cache is not None, **kept).last_hidden_state
        return hidden[:, 1:] if first else hidden


def longest_text(theirs: Any) -> int:
    """Tokens that a model of this configuration reads; 1,024 where it names no limit."""
    return getattr(theirs, "max_position_embeddings", None) or 1024


@torch.no_grad()
def distance(model: LanguageModel, causal: Any) -> float:
    """How far log p of a run and of transformers' own model are apart at most, on random tokens, also where a
    run reads the first half of them alone."""
    size, start = model.trunk.config, getattr(model.trunk, "start_token", -1)
    tokens = (2, min(16, size.block_size))
    x = torch.randint(size.vocab_size, tokens, generator=torch.Generator().manual_seed(0))
    logits = causal(F.pad(x, (1, 0), value=start) if start >= 0 else x, use_cache=False).logits
    theirs = logits[:, -x.shape[1] :, : size.vocab_size].log_softmax(-1)
    ours = [model.log_probs(x[:, :n]) for n in (tokens[1], -(-tokens[1] // 2))]
    return max((log_p - theirs[:, : log_p.shape[1]]).abs().max().item() for log_p in ours)


@torch.no_grad()
def to_causal(model: LanguageModel, folder: Path) -> bool:
    """Writes a model on this trunk as transformers' own causal language model; False, and nothing is written,
    where its head is another than the architecture's."""
    from transformers import AutoModelForCausalLM

    trunk, projection = cast(Pretrained, model.trunk), model.head.projection
    causal: Any = AutoModelForCausalLM.from_config(trunk.model.config, dtype=torch.float32).eval()
    causal.base_model.load_state_dict(trunk.model.state_dict())
    readout = causal.get_output_embeddings()
    readout.weight.copy_(projection.weight)
    if projection.bias is not None and readout.bias is not None:
        readout.bias.fill_(-1e4)[: len(projection.bias)] = projection.bias  # ids beyond V get nothing
    same = distance(model, causal) < TOLERANCE
    if same:
        causal.save_pretrained(folder)
    return same


TRUNKS: dict[str, type[Trunk]] = {"transformers": Pretrained}
