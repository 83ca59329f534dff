"""The parser of the command line. It reports wrong usage in one line, with the nearest choice or a pointer to the help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from kubectl_ipamd.errors import CommandLineError

WORD_MAX = 40
"""Most characters of a wrong word that are repeated. Ours: options and commands are shorter."""


class Parser(argparse.ArgumentParser):
    """argparse makes the parsers of the commands of this class too."""

    def parse_all(self, words: Sequence[str] | None) -> argparse.Namespace:
        """Parse a whole command line. Raises: SystemExit with the status of a wrong usage."""
        arguments, unknown = self.parse_known_args(words)
        for word in unknown:
            if not word.startswith("-"):
                self.error(f"there is no use for {word[:WORD_MAX]!r}")
            self.error(f"there is no option {word[:WORD_MAX]}", self._option_strings(), word)
        return arguments

    def error(self, message: str, choices: Iterable[str] = (), word: str = "") -> NoReturn:
        """End with a line about what is wrong, and with the choice that is nearest to `word`. Raises: SystemExit."""
        close = get_close_matches(word, list(choices), n=1)
        hint = f": did you mean {close[0]}?" if close else f"; see `{self.prog} --help`"
        sys.stderr.write(f"{self.prog}: {message}{hint}\n")
        raise SystemExit(CommandLineError.exit_status)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check a word against the choices of an argument. argparse's own message lists all choices."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"there is no command {value[:WORD_MAX]!r}", choices, value)
        name = action.option_strings[0] if action.option_strings else action.metavar
        self.error(f"{name} does not take {value[:WORD_MAX]!r}, but {', '.join(choices)}", choices, value)

    def _option_strings(self) -> list[str]:
        """Return the options of this parser and of its commands, because this parser reports the unknown ones of a command."""
        parsers: list[argparse.ArgumentParser] = [self]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
        return [option for parser in parsers for action in parser._actions for option in action.option_strings]
