"""`ipamctl config`: the settings in force in the daemon; without a daemon those of this process's environment."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.verb import EXIT_AWAY, EXIT_USAGE, Answer, Ask, Verb, VerbError, table

ORIGIN_NOTE = "the daemon does not answer: settings in this process's environment"


def render(answer: Answer) -> str:
    """Write one row per setting, under a line that says whose they are; what is not the default first."""
    rows = sorted(answer["settings"], key=lambda line: line["origin"] == "default")
    return f"{answer['origin_note']}\n\n" + table(
        ("SETTING", "VALUE", "DEFAULT", "ORIGIN", "MEANING"),
        [(line["env"], line["value"] or '""', line["default"] or '""', line["origin"], line["text"]) for line in rows],
    )


def _ask(daemon: Ask, _arguments: argparse.Namespace) -> Answer:
    try:
        return daemon("GetConfig")
    except VerbError as error:
        if error.exit_status != EXIT_AWAY:
            raise
    return _own()


def _own() -> Answer:
    from dataclasses import asdict

    from ipamd.model.errors import SettingsError
    from ipamd.model.redaction import without_secrets
    from ipamd.settings import describe, load

    try:
        lines = [asdict(line) for line in describe(load())]
    except SettingsError as error:
        raise VerbError(str(error), exit_status=EXIT_USAGE) from error
    for line in lines:
        line["value"] = without_secrets(line["value"])
        del line["is_live"]  # the daemon's answer has the same fields
    return {"settings": lines, "origin_note": ORIGIN_NOTE}


VERB = Verb(
    help="settings in force: value, default, where it comes from, meaning",
    ask=_ask,
    render=render,
    position=7,
)
