"""What the tests of exports share: runs that nobody trained, and their folders."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from data.open import load_tokenizer
from evaluate.settings import run_seed
from labs.transformers import export
from tests.fixtures import VOCAB, untrained
from training.run import load_model

DRAWS, SEED = 3, 7


@pytest.fixture(scope="module", autouse=True)
def cache_of_code(tmp_path_factory):
    """transformers copies the code of a folder before it imports it: not into the user's cache."""
    from transformers import dynamic_module_utils

    before = list(sys.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        yield
    sys.path[:] = before
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]


def write_run(run: Path, tokens: Path, **changes) -> None:
    """A checkpoint of a model that nobody trained."""
    untrained(run, load_tokenizer(tokens), shake=0.05, **dict(name="x", dataset="wikitext103") | changes)


def loaded(folder: Path, **options):
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **options)


def exported(at: Path, tokens: Path, **changes):
    """(folder, the model there, ours, our draws of its weights)"""
    write_run(at / "run", tokens, **changes)
    assert export.main([str(at / "run"), str(at / "hf"), f"--samples={DRAWS}", f"--seed={SEED}"]) == 0
    ours, ckpt = load_model(at / "run")
    return at / "hf", loaded(at / "hf"), ours, ours.head.draws(DRAWS, run_seed(SEED, ckpt.record))


def texts(count: int, length: int) -> torch.Tensor:
    return torch.randint(VOCAB, (count, length), generator=torch.Generator().manual_seed(2))


def ones(x: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(x)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
