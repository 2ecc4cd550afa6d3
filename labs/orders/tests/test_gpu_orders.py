"""What a GPU computes is what the CPU computes, in any order. Run with: make test-slow."""

import pytest
import torch

from labs.orders.filling import random_places
from labs.orders.readers import Reader
from labs.orders.sample import main
from labs.orders.tests.test_trunk import model_of, text
from labs.sequences.questions import FREE

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


@pytest.mark.parametrize("trunk", ["any_order", "masked"])
def test_gaps_are_filled_in(run, tiny, trunk):
    """What is drawn on a GPU is another text; what a place may hold is the same."""
    c = tiny(device="cuda", dtype="bfloat16", trunk=trunk)
    assert run(c) == 0
    ways = (["--order=speculative"], ["--order=burst"]) if trunk == "any_order" else (["--steps=3"],)
    for how in ([], *ways, ["--density"]):
        assert main([c.out_dir, "--device=cuda", "--infill=the <4> sea <3>", *how]) == 0


def test_distributions_of_any_order():
    results = []
    for device in ("cpu", "cuda"):
        model = model_of().float().to(device)
        known = torch.from_numpy(text(16)).view(2, 8).clone()
        known[:, 2:6] = FREE
        reader = Reader(model, known, model.head.draws(1, 0))
        places, _ = random_places(known, torch.Generator().manual_seed(0))
        tokens = torch.ones_like(places)
        q = reader.along(places, tokens)
        reader.accept(q, places, tokens, torch.tensor([1, 2]))
        results.append((q.probs(tokens), reader.each(places).row(torch.tensor([3, 3]))))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
