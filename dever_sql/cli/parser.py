"""argparse with the manners of this command: examples in every help, a next step in every error."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from dever_sql.credentials import hide_credentials

Run = Callable[[argparse.Namespace], int]

_CHOICE = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<choices>.*)\)")


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that keeps its epilog's lines and suggests the nearest word."""

    def __init__(
        self,
        *,
        prog: str | None = None,
        description: str | None = None,
        epilog: str | None = None,
        parents: Sequence[Parser] = (),
        add_help: bool = True,
        argument_default: Any = None,
    ) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            parents=parents,
            add_help=add_help,
            argument_default=argument_default,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and what to do about it; exit code 2."""
        found = _CHOICE.search(message)
        if found:
            choices = [choice.strip(" '") for choice in found["choices"].split(",")]
            near = difflib.get_close_matches(found["word"], choices, n=1)
            message = f"there is no {found['word']!r} here" + (
                f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(choices)}"
            )
        text = f"dever: {message}\nhint: {self.prog} --help shows the forms and examples\n"
        # A word too many may be a URL.
        self.exit(2, hide_credentials(text))


def shared_options() -> Parser:
    """A parser to be a parent of others. An option that is not given leaves no attribute: one
    given before a subcommand would be overwritten by the subcommand's default otherwise."""
    return Parser(add_help=False, argument_default=argparse.SUPPRESS)


class Commands:
    """The commands (or subcommands) below a parser."""

    def __init__(self, parser: Parser, *, title: str = "commands") -> None:
        self._commands = parser.add_subparsers(title=title, metavar="COMMAND", parser_class=Parser)

    def add(
        self,
        name: str,
        *,
        help: str,
        examples: str,
        run: Run | None,
        description: str | None = None,
        parents: Sequence[Parser] = (),
    ) -> Parser:
        """Add a command; `run(arguments)` returns the exit code. `run=None`: it has subcommands,
        and without one of them it shows its help."""
        parser = self._commands.add_parser(
            name,
            help=help,
            description=description or help[0].upper() + help[1:] + ".",
            epilog=f"examples:\n{examples.rstrip()}",
            parents=parents,
        )

        def show_help(_: argparse.Namespace) -> int:
            parser.print_help(sys.stderr)
            return 2

        parser.set_defaults(run=run or show_help)
        return parser
