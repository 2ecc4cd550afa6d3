"""causal_loss and linear_loss of a module: a transformers model's own loss and gradients, or a refusal."""

import copy

import pytest
import torch
from torch import nn

import heads
from heads import HEADS, causal_loss, linear_loss, log_probs

transformers = pytest.importorskip("transformers")
V, B, T, C = 97, 2, 11, 32
SIZE = dict(vocab_size=V, hidden_size=C, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2)
GQA = SIZE | dict(num_key_value_heads=1, head_dim=16)
MODELS = {
    "GPT2": dict(vocab_size=V, n_embd=C, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0),
    "Llama": SIZE,
    "Qwen3": GQA,
    "GPTNeoX": SIZE,
    "Mistral": SIZE | dict(num_key_value_heads=1),
    "Granite": SIZE | dict(logits_scaling=7.0),
    "Gemma2": GQA | dict(final_logit_softcapping=2.0),
    "Cohere": SIZE | dict(logit_scale=0.3, num_key_value_heads=1),
}


def make(name: str, **changes) -> nn.Module:
    """A random model with weights so large that its logits, and a cap on them, show."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**MODELS[name] | changes, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config)
    for p in model.parameters():
        p.data += 0.3 * torch.randn_like(p)
    return model.eval()


def lora(model: nn.Module, **changes) -> nn.Module:
    """With a LoRA on the lm head and on attention, whose weights are not 0."""
    peft = pytest.importorskip("peft")
    names = [n.rpartition(".")[2] for n, _ in model.named_modules()]
    attention = next(n for n in ("q_proj", "c_attn", "query_key_value") if n in names)
    readout = "embed_out" if "embed_out" in names else "lm_head"
    known = dict(r=4, lora_alpha=6, target_modules=[readout, attention], init_lora_weights=False)
    return peft.get_peft_model(model, peft.LoraConfig(**known | changes))


def text() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, labels of which some have no loss, and an attention mask."""
    ids = torch.randint(1, V, (B, T), generator=torch.Generator().manual_seed(1))
    labels, mask = ids.clone(), torch.ones_like(ids)
    labels[0, :4], labels[1, 9:], mask[1, 9:] = -100, -100, 0
    return ids, labels, mask


def result(model: nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("adapted", [False, True], ids=["plain", "lora"])
@pytest.mark.parametrize("name", MODELS)
def test_softmax_is_the_models_own_loss_and_gradients(name, adapted):
    model = lora(make(name)) if adapted else make(name)
    ids, labels, mask = text()
    for count in (None, 37):
        more = {} if count is None else dict(num_items_in_batch=count)
        own = model(input_ids=ids, labels=labels, attention_mask=mask, use_cache=False, **more).loss
        want = result(model, own)
        got = result(model, causal_loss(model, ids, labels, "softmax", count, mask))
        assert len(got) == len(want) > 3
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-6)


def test_several_adapters_one_that_is_off_and_weights_that_are_saved_whole():
    peft = pytest.importorskip("peft")
    model = lora(make("Llama"))
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False))
    ids, labels, _ = text()
    same = lambda: torch.testing.assert_close(causal_loss(model, ids, labels), model(ids, labels=labels).loss)
    model.base_model.set_adapter(["default", "other"])
    same()
    with model.disable_adapter():
        same()
    model.merge_adapter()
    same()
    model = lora(make("Llama"), target_modules=["q_proj"], modules_to_save=["lm_head"])
    model.get_output_embeddings().modules_to_save["default"].weight.data += 1
    same()


def test_dropout_of_a_lora_is_drawn():
    model, (ids, labels, _) = lora(make("Llama"), lora_dropout=0.5).train(), text()
    one, two = causal_loss(model, ids, labels), causal_loss(model, ids, labels)
    assert one != two and model.get_output_embeddings().lora_dropout["default"].training


class Doubling(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked(model):
    model.lm_head.register_forward_hook(lambda *_: None)


def scaled(model):
    forward = model.forward

    def scaled(**inputs):
        output = forward(**inputs)
        output.logits = output.logits * 1.5
        return output

    model.forward = scaled


def banning(value):
    """Some tokens may never come, as images in Chameleon's text."""

    def change(model):
        forward = model.forward

        def banned(**inputs):
            output = forward(**inputs)
            output.logits[..., :5] = value
            return output

        model.forward = banned

    return change


@pytest.mark.parametrize(
    "change, name",
    [
        (hooked, "hooks"),
        (banning(-torch.inf), "LlamaForCausalLM"),
        (banning(torch.finfo(torch.float32).min), "LlamaForCausalLM"),
        (lambda model: setattr(model, "loss_type", "ForMaskedLM"), "LlamaForCausalLM"),
        (scaled, "LlamaForCausalLM"),
        (lambda model: setattr(model.config, "logits_scaling", 2.0), "LlamaForCausalLM"),
        (lambda model: setattr(model, "lm_head", Doubling(C, V)), "Doubling"),
        (lambda model: lora(model, use_dora=True), "DoRA"),
        (lambda model: setattr(model.config, "is_encoder_decoder", True), "LlamaForCausalLM"),
    ],
)
def test_what_cannot_be_seen_is_refused_by_its_name(change, name):
    model, (ids, labels, _) = make("Llama"), text()
    model = change(model) or model
    with pytest.raises(ValueError, match=name):
        causal_loss(model, ids, labels)


@pytest.mark.parametrize("inputs", [dict(logits_to_keep=3), dict(shift_labels=text()[1])], ids=min)
def test_inputs_that_move_the_labels_are_refused(inputs):
    ids, labels, _ = text()
    with pytest.raises(ValueError, match="labels"):
        causal_loss(make("Llama"), ids, labels, **inputs)


def test_a_cap_it_does_not_know_is_seen():
    model, (ids, labels, _) = make("Gemma2"), text()
    cap, model.config = model.config.final_logit_softcapping, copy.deepcopy(model.config)
    model.config.get_text_config = lambda: transformers.LlamaConfig()
    assert cap
    with pytest.raises(ValueError, match="Gemma2ForCausalLM"):
        causal_loss(model, ids, labels)


@pytest.mark.parametrize("name", sorted(HEADS))
def test_every_head_with_weights_entropy_and_argmax(name):
    """On a LoRA, against the head on the model's own logits; a linear_loss in each reduction agrees."""
    model, (ids, labels, mask) = lora(make("GPT2")), text()
    weights, stats = torch.rand(B, T, generator=torch.Generator().manual_seed(2)), {}
    loss = causal_loss(model, ids, labels, name, None, mask, token_weights=weights, stats=stats)
    kept, logits = labels[:, 1:] != -100, model(ids, attention_mask=mask).logits[:, :-1]
    head = HEADS[name](V)
    if not head.cosine:
        want = head.loss(logits[kept], heads.Targets.single(labels[:, 1:][kept]))
        w = weights[:, 1:][kept]
        got = result(model, loss)
        for a, b in zip(got, result(model, (w * want).sum() / w.sum()), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
        p = head.log_probs(logits[kept].detach()).exp()
        entropy = -torch.special.xlogy(p, p).sum(1)
        torch.testing.assert_close(stats["entropy"][kept], entropy, rtol=1e-3, atol=1e-5)
        assert torch.equal(stats["argmax"][kept], p.argmax(1))
    assert (stats["argmax"][~kept] == -1).all() and not stats["entropy"][~kept].any()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["entmax15", "am_softmax"])
def test_linear_loss_of_a_lora_is_that_of_the_whole_weight(name, reduction):
    layer = lora(make("Llama")).get_output_embeddings()
    (a,), (b,) = layer.lora_A.values(), layer.lora_B.values()
    hidden, target = torch.randn(9, C, requires_grad=True), torch.randint(V, (9,))
    whole = layer.base_layer.weight + layer.scaling["default"] * b.weight @ a.weight
    results, stats = [], ({}, {})
    for weight, seen in zip((layer, whole), stats):
        loss = linear_loss(hidden, weight, target, name, gain=1.5, reduction=reduction, stats=seen)
        results.append([loss.detach(), *torch.autograd.grad(loss.sum(), (hidden, a.weight, b.weight))])
    for got, want in zip(*results):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*stats)
    p, q = (log_probs(hidden, weight, name).exp() for weight in (layer, whole))
    torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
