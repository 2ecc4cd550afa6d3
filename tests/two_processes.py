"""What test_processes.py has two processes of torchrun do, in one launch, because a launch costs seconds.

    torchrun --nproc-per-node=2 tests/two_processes.py OUT TOKENS TEACHER

Runs write to OUT/<name>, and each process what it saw to OUT/seen-<rank>.json.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

import augment
import train
from common import device
from data.labels import fingerprint, identity
from data.tokens import open_tokens
from tests.fixtures import TINY, train_in_process
from training.run import Run

HALF = dict(max_steps=3, lr_decay_steps=6)


def configs(out: Path, teacher: str) -> dict[str, train.TrainConfig]:
    """The runs by name. "noisy" has every source of randomness: dropout, drawn weights, labels of a store."""
    noisy = dict(head="sigmoid", bayesian=True, dropout=0.2, labels="soft", teacher=teacher, candidates=5)
    parted = dict(head="sigmoid", bayesian=True, micro_batch=2, eval_interval=4, eval_windows=3)
    kinds = {"noisy": noisy, "noisy-broken": noisy | HALF, "plain-broken": HALF, "plain-begun-alone": HALF}
    kinds |= {"float32": parted, "float16": parted | dict(dtype="float16")}
    known = lambda name: TINY | dict(name=name, out_dir=str(out / name))
    return {name: train.TrainConfig(**known(name) | changes) for name, changes in kinds.items()}


def resumed(config: train.TrainConfig) -> train.TrainConfig:
    return dataclasses.replace(config, resume=True, max_steps=6)


def label_store(tokens: Path, teacher: str) -> Path:
    """Makes, or finds, a store of `tokens` that no run here opens."""
    c = train.TrainConfig(**TINY | dict(teacher=teacher, candidates=6, seed=77))
    split, run = open_tokens(tokens / "train.bin"), Run(teacher)
    made_of = identity(split, c, fingerprint(run.record, run.weights()))
    return augment.build_store(split, c, made_of, "cpu")


def dtypes_chosen() -> list[str]:
    """What "auto" means where only process 0, then only process 1, has a CPU with bfloat16 instructions."""
    real, chosen = device.capabilities, []
    for lucky in ("0", "1"):
        device.capabilities = lambda *_: {"avx512_bf16": os.environ["RANK"] == lucky}
        procs = train.Processes("cpu")
        chosen.append(procs.agreed_dtype("auto", None).name)
        procs.close()
    device.capabilities = real
    return chosen


def store_built(tokens: Path, teacher: str) -> list[int]:
    """Both processes open the same store at once, with nothing but its lock between them. The first window of
    each batch that this one computed."""
    computed, real = [], augment.propose

    def noted(teacher, indices, *rest):
        computed.append(int(indices[0]))
        return real(teacher, indices, *rest)

    augment.propose = noted
    label_store(tokens, teacher)
    augment.propose = real
    return computed


def one_group_for_all() -> None:
    """Each run makes a group and destroys it, but torchrun's store does not serve a second one."""
    dist.init_process_group("gloo")
    dist.init_process_group = dist.destroy_process_group = lambda *_, **__: None


def main(out: Path, tokens: Path, teacher: str) -> None:
    one_group_for_all()
    runs = configs(out, teacher)
    seen = {"dtypes": dtypes_chosen()}
    begun = ("noisy", "noisy-broken", "plain-broken", "float32", "float16")
    codes = {name: train_in_process(runs[name], tokens) for name in begun}
    codes["noisy-resumed"] = train_in_process(resumed(runs["noisy-broken"]), tokens)
    codes["plain-resumed"] = train_in_process(resumed(runs["plain-begun-alone"]), tokens)
    seen |= {"codes": codes, "computed": store_built(tokens, teacher)}
    (out / f"seen-{os.environ['RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
