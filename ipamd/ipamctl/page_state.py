"""Make the JSON document that the status page shows."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from ipamd.ipamctl.tables import safe
from ipamd.ipamctl.verb import Ask
from ipamd.model.time_text import rfc3339

STATE_AGE_S = 1.0
"""All requests within this time get the same state. Ours: a state of 700 sandboxes costs the daemon tens of milliseconds, and several
people may have the page open."""

ATTACHMENTS_MAX = 1000
"""The largest number of sandboxes that are shown; the newest are chosen. Ours: more than EKS puts on any node (250), and about 400
KB."""

EVENTS_MAX = 60
"""The largest number of events that are shown; the newest are chosen. Ours: as many as a person reads."""

ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
"""Escapes for characters of HTML, so that a browser finds no tag even if it renders the JSON as a page."""


def state(daemon: Ask, *, docs_url: str = "") -> bytes:
    """Collect the daemon's answers to `ipamctl`, as JSON.

    Texts from outside (names of pods, words of EC2 and the runtime) are made printable, as for a terminal.

    Args:
        docs_url: URL of a copy of docs/, for the links of the page; "" for no links.
    Raises: VerbError if the daemon does not answer.
    """
    attachments = daemon("ListAttachments")["attachments"]
    page_state = {
        "at": rfc3339(datetime.now(UTC)),
        "docs_url": docs_url,
        "status": daemon("GetStatus"),
        "enis": daemon("ListEnis")["enis"],
        "attachment_count": len(attachments),
        "attachments": attachments[::-1][:ATTACHMENTS_MAX],
        "events": daemon("GetHistory", limit=EVENTS_MAX)["entries"][::-1],
    }
    text = json.dumps(safe(page_state), ensure_ascii=True, separators=(",", ":"))
    for character, escape in ESCAPES.items():
        text = text.replace(character, escape)
    return text.encode("ascii")
