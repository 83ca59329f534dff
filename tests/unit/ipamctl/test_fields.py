"""What `ipamctl -o json` prints is an interface: a release adds fields, and renames or removes none without saying so."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipamd.answers import answer
from ipamd.core.health import StageReport
from ipamd.pb import introspection_pb2 as pb
from tools.ipamctl_page import fields

KEPT = Path(__file__).with_name("fields.txt")


def published() -> set[str]:
    """RPC, path and kind of every field of every reply."""
    messages = pb.DESCRIPTOR.message_types_by_name
    return {
        f"{name.removesuffix('Reply')} {field.path} {field.kind}"
        for name in messages
        if name.endswith("Reply")
        for field in fields(messages[name], {})
    }


def test_no_field_is_lost() -> None:
    """What was published once is there still, with its type. A new field is added to the list."""
    kept = set(KEPT.read_text().splitlines())
    assert not kept - published(), "fields that scripts may read are gone"
    added = published() - kept
    assert not added, "\n".join([f"add to {KEPT.name}:", *sorted(added)])


def test_a_field_that_nothing_fills_is_a_defect() -> None:
    """A field of the model that is renamed must not become an empty answer."""
    with pytest.raises(AttributeError, match="elapsed_s"):
        answer(pb.Stage, object(), name="x", state="done", detail="")
    assert answer(pb.Stage, StageReport("datastore", detail="opened"), elapsed_s=0.0).detail == "opened"
