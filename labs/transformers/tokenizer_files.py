"""Tokenizers as transformers reads and writes them: with a decoder, and with names of special tokens."""

from pathlib import Path

import tokenizers

from data import tokenizers as ours

BYTE_255 = "\u00ff"  # as byte-level tokenizers write the byte, which no text has: it pads what we export
GPT2_VOCABULARY = "70a720356974bb99358aa0ce9f65de6c5cd2ee250442eb6279d7115029607df8"  # digest of GPT-2's ids


def portable(tokenizer: ours.Tokenizer) -> tokenizers.Tokenizer:
    """A copy of its model that encodes and decodes the same in other programs."""
    if isinstance(tokenizer, ours.GPT2Tokenizer):
        from transformers.convert_slow_tokenizer import TikTokenConverter  # seconds to import

        encoding = tokenizer.encoding

        class Converter(TikTokenConverter):
            @staticmethod
            def load_tiktoken_bpe(tiktoken_url: str) -> dict[bytes, int]:
                return encoding._mergeable_ranks

        end = encoding.decode([tokenizer.end_id])
        return Converter(pattern=encoding._pat_str, extra_special_tokens=[end]).converted()
    model = tokenizers.Tokenizer.from_str(tokenizer.model.to_str())
    if isinstance(tokenizer, ours.WordTokenizer):
        decoders = tokenizers.decoders
        spaced = decoders.WordPiece(prefix="\n\n", cleanup=False)  # no word begins with that
        line_ends = decoders.Replace(tokenizers.Regex(" ?\n ?"), "\n")
        model.decoder = decoders.Sequence([spaced, decoders.Fuse(), line_ends])
    return model


def exported_tokenizer(path: Path) -> ours.Tokenizer:
    """The tokenizer of the tokenizer.json beside weights that transformers wrote: GPT-2's, or one of ours
    whose export has a decoder and names its padding as special, or any other."""
    tokenizer = ours.read_tokenizer(path)
    if ours.vocabulary_digest(tokenizer.model.get_vocab()) == GPT2_VOCABULARY:
        return ours.GPT2Tokenizer()
    if isinstance(tokenizer, ours.FileTokenizer):
        content = tokenizer.content
        if {token["content"] for token in content["added_tokens"]} <= {BYTE_255}:
            plain = content | {"added_tokens": []}
            return ours.own_kind(plain) or ours.own_kind(plain | {"decoder": None}) or tokenizer
    return tokenizer
