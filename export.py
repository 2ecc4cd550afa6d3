"""Writes a run's best checkpoint as a GPT2LMHeadModel folder, which transformers reads.

python export.py out/baseline FOLDER
"""

if __name__ == "__main__":
    from runtime import configurator

    configurator.quiet_imports()

from pathlib import Path

from data.prepared import tokenizer_of
from heads import BayesianProjection, Softmax
from runtime.checkpoint import load_model, writing
from runtime.configurator import Parser, cli
from runtime.configurator import path as path_of
from runtime.errors import UserError
from runtime.files import beside
from runtime.gpt2 import to_gpt2


def export(path: str | Path, folder: str | Path) -> None:
    """Writes a run's best checkpoint as a `GPT2LMHeadModel` folder. ValueError if GPT-2 cannot compute it: another link, an output bias, Bayesian weights."""
    folder = Path(folder)
    if folder.exists():
        raise UserError(f"{folder} exists: give the name of a new folder")
    model, ckpt = load_model(path)
    head, projection = model.head.head, model.head.projection
    if (
        not (isinstance(head, Softmax) and type(head).link is Softmax.link)
        or projection.bias is not None
        or isinstance(projection, BayesianProjection)
    ):
        raise UserError(
            f"{ckpt.path} has the head {ckpt.config['head']!r}{' with Bayesian weights' if ckpt.config['bayesian'] else ''}: a GPT2LMHeadModel computes a plain softmax only"
        )
    tokenizer, aside = tokenizer_of(ckpt), beside(folder)
    with writing(
        aside, f"could not write {folder}", "nothing of it is left: free some disk space and run it again"
    ):
        to_gpt2(model.trunk, aside)
        tokenizer.save(aside)
    aside.rename(folder)


def parser() -> Parser:
    p = Parser(__doc__)
    p.add_argument("run", type=path_of, help="the out folder of a training run, or one checkpoint in it")
    p.add_argument("folder", type=path_of, help="the new folder")
    return p


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    export(args.run, args.folder)
    print(f"wrote {args.folder}")
    return 0


if __name__ == "__main__":
    cli(main)()
