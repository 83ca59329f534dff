"""`ipamctl config`: show the settings in force, and where each comes from."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.tables import filled, table
from ipamd.ipamctl.verb import Answer, Ask, AwayError, Verb

ORIGIN_NOTE = "the daemon does not answer: settings in this process's environment"


def render_config(answer: Answer, layout: Layout) -> str:
    """Write a line about the origin of the settings, then one row per setting. Settings that differ from the default come first."""
    rows = sorted(answer["settings"], key=lambda line: line["origin"] == "default")
    columns = {"SETTING": "{name}", "VALUE": "{value}", "DEFAULT": "{default}", "ORIGIN": "{origin}", "MEANING": "{text}"}
    return f"{filled(answer['origin_note'], layout)}\n\n" + table(rows, columns, layout, empty='""')


def _config(daemon: Ask, _arguments: argparse.Namespace) -> Answer:
    try:
        return daemon("GetConfig")
    except AwayError:
        from dataclasses import asdict

        from ipamd.model.redaction import without_secrets
        from ipamd.settings import describe, load

        lines = describe(load())
        settings = [{"name": line.env} | asdict(line) | {"value": without_secrets(line.value)} for line in lines]
        for setting in settings:  # an answer of the daemon does not have these two fields
            del setting["env"], setting["is_live"]
        return {"settings": settings, "origin_note": ORIGIN_NOTE}


CONFIG = Verb(
    help="settings in force: value, default, where it comes from, meaning",
    about="Lists each setting with its value and its origin; those that differ from the default come first.",
    examples=("ipamctl config",),
    lay_out=render_config,
    rpc="GetConfig",
    make=_config,
)
