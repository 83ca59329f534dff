"""The parser of the command line. For a misspelt word it suggests the nearest choice instead of listing all choices."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from typing import NoReturn

from ipamd.ipamctl.verb import EXIT_USAGE

COMMAND = "COMMAND"
"""The word that stands for a verb in the usage text."""

_MISSPELT = re.compile(r"invalid choice: '(.*?)'(?:, maybe you meant .*?)? \(choose from (.*)\)", re.S)
"""Matches argparse's message about a wrong choice. From Python 3.14 on the message may have a guess of argparse, and some releases of
Python do not put the choices in quotes."""

_UNKNOWN_OPTION = re.compile(r"unrecognized arguments: (-\S+)")
_CHOICE = re.compile(r"[\w-]+")


class Parser(argparse.ArgumentParser):
    """Reports wrong usage in one line, with a suggestion or a pointer to the help. argparse makes subparsers of this class too."""

    def error(self, message: str) -> NoReturn:
        """End with a line about what is wrong. Raises: SystemExit with the status of a wrong usage."""
        sys.stderr.write(f"ipamctl: {self._explained(message)}\n")
        raise SystemExit(EXIT_USAGE)

    def _explained(self, message: str) -> str:
        misspelt = _MISSPELT.search(message)
        if misspelt is not None:
            word, choices = misspelt[1], _CHOICE.findall(misspelt[2])
            subject = message.partition(":")[0].removeprefix("argument ")
            if subject == COMMAND:
                return f"there is no command {word[:40]!r}{_suggestion(word, choices) or self._see_help()}"
            listed = f"; choose from {', '.join(choices)}"
            return f"{subject} does not take {word[:40]!r}{_suggestion(word, choices) or listed}"
        option = _UNKNOWN_OPTION.search(message)
        if option is not None:
            return f"there is no option {option[1][:40]}{_suggestion(option[1], self._every_option()) or self._see_help()}"
        return f"{message}{self._see_help()}"

    def _see_help(self) -> str:
        return f"; see `{self.prog} --help`"

    def _every_option(self) -> Iterable[str]:
        """The options of this parser and of its verbs. An unknown option of a verb is reported by this parser."""
        parsers = [self]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
        options: list[str] = []
        for parser in parsers:
            for action in parser._actions:
                options += action.option_strings
        return options


def _suggestion(word: str, choices: Iterable[str]) -> str:
    from difflib import get_close_matches  # 4 ms, and only a mistake needs it

    close = get_close_matches(word, list(choices), n=1)
    return f": did you mean {close[0]}?" if close else ""
