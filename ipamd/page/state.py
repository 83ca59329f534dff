"""What the page shows, as JSON: the answers that `ipamctl` gets, made by the same service, and the last events of the ledger.

Texts from outside (names of pods, words of EC2 and the runtime) are made safe to print as for a terminal, and no character of HTML is
in the JSON as it is: a browser that took it for a page would find no tag in it.
"""

from __future__ import annotations

import json
from typing import Any, cast

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from ipamd.model.words import printable, rfc3339
from ipamd.pb import introspection_pb2 as pb
from ipamd.ports import Clock
from ipamd.rpc.introspection import IntrospectionServicer

ATTACHMENTS_MAX = 1000
"""Sandboxes that are shown, the newest. Ours: more than EKS puts on any node (250), and about 400 KB."""

EVENTS_MAX = 60
"""Events that are shown, the newest. Ours: what a person reads."""

ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}

_NO_CALL = cast(grpc.ServicerContext, None)
"""These RPCs read nothing of the call that they answer."""


class PageState:
    """Makes the JSON; for one thread. Reads memory, and of the disk the newest rows of the ledger."""

    def __init__(self, introspection: IntrospectionServicer, clock: Clock) -> None:
        self._introspection = introspection
        self._clock = clock

    def __call__(self) -> bytes:
        """Return the JSON. Raises: DatastoreError if the ledger cannot be read."""
        asked = self._introspection
        attachments = _plain(asked.ListAttachments(pb.ListAttachmentsRequest(), _NO_CALL))["attachments"]
        state = {
            "at": rfc3339(self._clock.now()),
            "status": _plain(asked.GetStatus(pb.GetStatusRequest(), _NO_CALL)),
            "enis": _plain(asked.ListEnis(pb.ListEnisRequest(), _NO_CALL))["enis"],
            "attachment_count": len(attachments),
            "attachments": attachments[::-1][:ATTACHMENTS_MAX],
            "events": [_plain(entry) for entry in asked.latest_entries(EVENTS_MAX)[::-1]],
        }
        text = json.dumps(_printable(state), ensure_ascii=True, separators=(",", ":"))
        for character, escape in ESCAPES.items():
            text = text.replace(character, escape)
        return text.encode("ascii")


def _plain(reply: Message) -> dict[str, Any]:
    return MessageToDict(reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _printable(value: Any) -> Any:
    """The same with every text made safe to print."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: _printable(one) for key, one in value.items()}
    return [_printable(one) for one in value] if isinstance(value, list) else value
