"""Tables -> one HTML file that opens in any browser, without a network.

    python report.py results/heads results/grammar --out report.html

A table is the name of its store without its ending: results/NAME of table.py, or --out of eval_diversity.py.
The page has each of its measures with settings, groups and seeds, the figures that its rows give, other
pictures that lie beside it (NAME.*.png), and texts of NAME.samples. Runs that stand in no table get one by
`python eval_diversity.py RUN ... --out NAME`, and a page to play with by `python labs/play/serve.py RUN ...`.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from common.config import Positive, cli, read
from common.files import check_writable, real_path, replacing
from common.places import as_installed_command


@dataclass
class ReportConfig:
    # fmt: off
    tables: list[str]               # TABLE ...
    out: str = "report.html"        # the file to write
    prompts: Positive = 3           # whose texts are shown
    # fmt: on


def main(argv: list[str]) -> int:
    c = read(ReportConfig, argv, __doc__)
    # Not before --help is answered: measures import torch, which takes seconds
    from tables.report.page import render
    from tables.report.tables import open_table

    out = real_path(c.out)  # a link stays one
    check_writable(out)
    tables = [open_table(Path(name).expanduser(), c.prompts) for name in c.tables]
    page = render(tables, as_installed_command(f"python report.py {shlex.join(argv)}")).encode()
    with replacing(out) as file:
        file.write(page)
    print(f"wrote {out}, {len(page) / 1e3:,.0f} kB: open it in a browser")
    return 0


if __name__ == "__main__":
    cli(main)
