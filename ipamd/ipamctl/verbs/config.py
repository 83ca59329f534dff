"""`ipamctl config`: settings in the environment of `ipamctl`; the daemon need not run."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.table import table
from ipamd.ipamctl.verb import EXIT_USAGE, Answer, Ask, Verb, VerbError

ORIGIN_NOTE = "settings in this process's environment; the daemon was not asked"


def render(answer: Answer) -> str:
    """Write one row per setting, under a line that says whose they are."""
    return f"{answer['origin_note']}\n\n" + table(
        ("SETTING", "VALUE", "DEFAULT", "ORIGIN", "MEANING"),
        [
            (line["env"], line["value"] or '""', line["default"] or '""', line["origin"], line["text"])
            for line in answer["settings"]
        ],
    )


def _ask(_daemon: Ask, _arguments: argparse.Namespace) -> Answer:
    from dataclasses import asdict

    from ipamd.model.errors import SettingsError
    from ipamd.settings import describe, load

    try:
        lines = [asdict(line) for line in describe(load())]
    except SettingsError as error:
        raise VerbError(str(error), exit_status=EXIT_USAGE) from error
    return {"origin_note": ORIGIN_NOTE, "settings": lines}


VERB = Verb(
    help="settings: value, default, origin, meaning",
    ask=_ask,
    render=render,
    position=7,
)
