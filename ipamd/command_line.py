"""The parser of command lines, for all programs. For a misspelt word it suggests the nearest choice instead of listing all choices."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from ipamd.model.words import printable

EXIT_USAGE = 2
"""Exit status of a wrong command line. Source: argparse."""

WORD_MAX = 40
"""Most characters of a wrong word that are repeated. It is longer than any of our commands and options."""


class WrongUsageError(SystemExit):
    """The command line is wrong, and the user has been told so.

    Attributes:
        word: the word that is wrong; "" if a word is missing, or more than one is wrong.
        suggestion: the choice that the user probably meant; "" if none is near.
    """

    def __init__(self, *, word: str, suggestion: str) -> None:
        super().__init__(EXIT_USAGE)
        self.word = word
        self.suggestion = suggestion


class Parser(argparse.ArgumentParser):
    """Reports wrong usage in one line, with a suggestion or a pointer to the help. argparse makes subparsers of this class too."""

    _words: Sequence[str] = ()
    """What is being parsed."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]  # argparse overloads it
        """Parse a whole command line. Raises: WrongUsageError."""
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self._require_known_options(unknown)
            self._refuse(f"there is no use for {_quoted(unknown[0])}", word=unknown[0])
        return arguments

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse, and return what was parsed and the words that are left. Raises: WrongUsageError."""
        self._words = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End with a line about what is wrong. Raises: WrongUsageError."""
        # argparse reports a missing argument before an unknown option, though a misspelt option is often why it is missing.
        self._require_known_options(self._words)
        self._refuse(message)

    def _require_known_options(self, words: Sequence[str]) -> None:
        options = self._every_option()
        for word in words:
            name = word.partition("=")[0]
            if word == "--":
                return
            if name.startswith("--") and not any(option.startswith(name) for option in options):
                self._refuse(f"there is no option {printable(name, most=WORD_MAX)}", word=name, choices=options)

    def _refuse(self, message: str, *, word: str = "", choices: Iterable[str] = (), listed: str = "") -> NoReturn:
        """End with a line. Args: listed: what follows the message if no choice is near; by default a pointer to the help."""
        suggestion = nearest(word, choices)
        hint = f": did you mean {suggestion}?" if suggestion else listed or f"; see `{self.prog} --help`"
        sys.stderr.write(f"{self.prog.partition(' ')[0]}: {message}{hint}\n")
        raise WrongUsageError(word=word, suggestion=suggestion)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check a word against the choices of an argument. argparse's own message lists all choices, and its wording changes."""
        if action.choices is None or value in action.choices:
            return
        self._require_known_options(self._words)  # the word may be the value of a misspelt option
        word, choices = str(value), [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            self._refuse(f"there is no command {_quoted(word)}", word=word, choices=choices)
        name = "/".join(action.option_strings) or action.metavar or action.dest
        listed = f"; choose from {', '.join(choices)}"
        self._refuse(f"{name} does not take {_quoted(word)}", word=word, choices=choices, listed=listed)

    def _every_option(self) -> list[str]:
        """The options of this parser and of its commands. An unknown option of a command is reported by this parser."""
        parsers: list[argparse.ArgumentParser] = [self]
        options: list[str] = []
        for parser in parsers:
            for action in parser._actions:
                options += action.option_strings
                if isinstance(action, argparse._SubParsersAction):
                    parsers += action.choices.values()
        return options


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return the choice that is most like a word, or "" if none is like it."""
    if not word:
        return ""
    from difflib import get_close_matches  # 4 ms, and only a mistake needs it

    return next(iter(get_close_matches(word, list(choices), n=1)), "")


def _quoted(word: str) -> str:
    return repr(word[:WORD_MAX])
