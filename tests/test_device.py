"""Devices and precision: "auto" is a function of capabilities, which the tests make up."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from common import device
from common.device import PEAK_FLOPS, capabilities, choose_dtype, flops_per_token, get_device, peak_flops
from model import GPT, GPTConfig

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda", 0), torch.device("mps")
LAPTOP = {"avx2": True, "avx512_bf16": False}
SERVER = {"avx2": True, "avx512_bf16": True, "amx_bf16": False}


@pytest.mark.parametrize("name", ["cpu:foo", "gpu", "meta", "cuda:99"])
def test_devices_that_are_not_there(name):
    with pytest.raises(ValueError, match=name):
        get_device(name)
    assert get_device("cpu") == CPU


def test_mps_is_taken_only_by_name(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match="mps"):
        get_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert get_device("mps") == MPS and get_device("auto") == CPU
    with pytest.raises(ValueError, match="dtype"):
        choose_dtype("bfloat16", MPS)


def test_a_busy_machine_has_a_remedy(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    for load, threads, busy in ((9.0, 4, True), (3.9, 4, False), (9.0, 1, False)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0, 0))
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert ("OMP_NUM_THREADS=1" in device.busy_machine()) == busy


def test_what_needs_float64_on_mps():
    assert device.float64_device(MPS) == CPU and device.float64_device(CUDA) == CUDA
    assert device.to_float64(torch.ones(2)).dtype == torch.float64


@pytest.mark.parametrize(
    "where, has, want",
    [
        (CPU, LAPTOP, "float32"),
        (CPU, {}, "float32"),  # a torch that cannot tell
        (CPU, SERVER, "bfloat16"),
        (CPU, {"neon": True, "bf16": False, "sve_bf16": True}, "bfloat16"),
        (CUDA, {"compute_capability": (8, 0)}, "bfloat16"),
        (CUDA, {"compute_capability": (7, 5)}, "float16"),
        (MPS, {}, "float32"),
    ],
)
def test_auto(where, has, want, monkeypatch):
    monkeypatch.setattr(device, "capabilities", lambda _: has)
    assert choose_dtype("auto", where).name == want


LEVELS = {"AVX512_CORE": False, "AVX512_CORE_AMX": True, "default": True, "": True}


@pytest.mark.parametrize("level, computes", LEVELS.items())
def test_onednn_can_be_kept_from_16_bits(monkeypatch, level, computes):
    """As if a CPU had everything; torch.cpu.get_capabilities goes on saying so."""
    native = dict.fromkeys(("avx512_bf16", "amx_bf16"), True)
    other = {"avx2": True, "avx512_f": True}
    found = {**other, **native, "architecture": "x86_64", "l2_cache_size": 1}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.delenv(device.ISA_VARIABLE, raising=False)
    assert capabilities() == other | native
    monkeypatch.setenv(device.ISA_VARIABLE, level)
    assert capabilities() == other | dict.fromkeys(native, computes)
    assert choose_dtype("auto", CPU).name == ("bfloat16" if computes else "float32")


def test_without_onednn_nothing_computes_16_bits(monkeypatch):
    """torch on macOS: the CPU has bf16, its matrix products do not use it."""
    found = {"neon": True, "bf16": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert capabilities() == {"neon": True, "bf16": False}


def test_flops_are_those_of_the_matrix_products():
    """As torch counts them, forward and backward, of the trunk and a whole projection."""
    c = GPTConfig(vocab_size=320, block_size=32, n_layer=2, n_head=2, n_embd=64)
    model, tokens = GPT(c), torch.randint(320, (3, 32))
    with FlopCounterMode(display=False) as counter, torch.autocast("cpu", torch.bfloat16):
        hidden = model(tokens)
        (hidden @ model.wte.weight.t()).float().square().sum().backward()
    assert counter.get_total_flops() == pytest.approx(flops_per_token(c) * tokens.numel(), rel=1e-6)


def test_no_peak_is_guessed(monkeypatch):
    known = {("NVIDIA H200", "bfloat16"): PEAK_FLOPS["NVIDIA H200"], ("Tesla T4", "float16"): 65e12}
    unknown = ("NVIDIA H200", "float32"), ("Tesla T4", "bfloat16"), ("NVIDIA H2000", "bfloat16")
    for gpu, dtype in (*known, *unknown):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, gpu=gpu: gpu)
        assert peak_flops(torch.device("cuda"), dtype) == known.get((gpu, dtype))
    assert peak_flops(torch.device("cpu"), "bfloat16") is None
