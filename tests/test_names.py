"""Names of rows."""

import pytest

from evaluate.names import check_apart
from model import GPT, GPTConfig


def test_names_that_share_a_file_are_refused():
    check_apart(["a b", "a-b"])
    for names in (["a b", "a_b"], ["A", "a"], ["a", "a"]):
        with pytest.raises(ValueError, match="share a file"):
            check_apart(names)


def test_parameters_are_counted_without_making_them():
    c = GPTConfig(vocab_size=300, block_size=7, n_layer=3, n_head=2, n_embd=6)
    assert c.parameters == sum(p.numel() for p in GPT(c).parameters())
