"""Any base model of transformers as a trunk, `trunk = "transformers"`: import.py makes runs of them."""

import inspect
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from model import GPTConfig, Trunk


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
        self.config, self.start_token = config, start_token
        self.model: Any = AutoModel.from_config(theirs, dtype=torch.float32)
        rows, longest = len(self.embedding), longest_text(theirs) - (start_token >= 0)
        if config.vocab_size > rows or config.block_size > longest:
            asked = f"vocab_size = {config.vocab_size}, block_size = {config.block_size}"
            raise ValueError(f"{asked}: this {theirs.model_type} has {rows} tokens and reads {longest}")
        names = inspect.signature(self.model.forward).parameters
        # transformers 5.24 renamed it. Models without attention have another cache, or none
        self.cache_name = next((name for name in ("past_key_values", "cache") if name in names), "")
        if checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        if freeze:
            self.embedding.requires_grad_(False)
            layers = next(m for m in self.model.modules() if isinstance(m, nn.ModuleList))
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


TRUNKS: dict[str, type[Trunk]] = {"transformers": Pretrained}
