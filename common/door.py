"""A command's door: what it answers before its own imports, of which torch alone takes seconds.

A command's file begins with what it takes, a dataclass, and its `Program`, and imports the rest below. So
neither imports torch, and what the dataclass's checks need comes from modules that do not either.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from common.config import cli, configure, help_text, quiet_imports, wants_help
from common.errors import UserError
from common.places import EXTRAS, called, missing, not_installed

T = TypeVar("T")


def read(config: Any, argv: list[str]) -> Any:
    """The checked configuration of a command line, an instance of the dataclass `config`.

    UserError for what it refuses.
    """
    if hasattr(config, "read"):
        return config.read(argv)
    made = configure(config, argv)
    if hasattr(made, "check"):
        made.check()
    return made


class Program(Generic[T]):
    """A command that takes what the dataclass `config` says, and `about` says what it does.

    `name`   the module's __name__. If it is the program that runs, it answers here and now: --help, packages
             that are not installed, and all that `config` refuses, each without an import of the rest
    `needs`  the packages that it cannot do without, of those that a training does not need

    As a decorator it makes the command's main(argv) of a main(configuration).
    """

    def __init__(self, name: str, about: str | None, config: type[T], *needs: str):
        self.about, self.config, self.needs = about, config, needs
        if name == "__main__":
            quiet_imports()
            try:
                cli(self.answer)()
            except SystemExit as end:
                if end.code or wants_help(sys.argv[1:]):
                    raise
            quiet_imports()

    def answer(self, argv: list[str]) -> None:
        """The help, or a UserError for what cannot be done."""
        if wants_help(argv):
            self.help(argv)
        elif lacks := missing(*EXTRAS[""], *self.needs):
            raise UserError(not_installed(*lacks))
        else:
            self.read(argv)

    def help(self, argv: list[str]) -> None:
        config: Any = self.config
        # a command whose flags depend on one of them says which are meant
        flags = config.help(argv) if hasattr(config, "help") else help_text(config)
        print(called(f"{self.about}\n{flags}"))

    def read(self, argv: list[str]) -> T:
        return read(self.config, argv)

    def __call__(self, main: Callable[[T], int]) -> Callable[[list[str]], int]:
        @functools.wraps(main)
        def run(argv: list[str]) -> int:
            if wants_help(argv):
                self.help(argv)
                return 0
            return main(self.read(argv))

        return run
