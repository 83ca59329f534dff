"""A conflist has two owners: our part is compared and repaired, that of others is neither."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ipamd.model.conflist_parts import (
    DEPTH_MAX,
    OthersPart,
    OwnPart,
    PartDefect,
    defect_of,
    merge,
    others_in,
    parse,
)

FIELDS = {"cniVersion": "1.0.0", "cniVersions": ["0.3.1", "1.0.0"], "name": "vpc-ipamd"}
OURS: dict[str, Any] = {"type": "vpc-cni"}
PORTMAP: dict[str, Any] = {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}}
MESH: dict[str, Any] = {"type": "mesh-cni", "log_level": "info"}
OWN = OwnPart(FIELDS, (OURS, PORTMAP))


def made(*plugins: object, **fields: object) -> dict[str, Any]:
    """A conflist with our fields."""
    return {**FIELDS, "plugins": list(plugins), **fields}


@pytest.mark.parametrize(
    ("document", "defect", "others"),
    [
        (made(OURS, PORTMAP), None, []),
        (made(OURS, PORTMAP, MESH), None, [MESH]),
        (made(OURS, PORTMAP, MESH, MESH), None, [MESH, MESH]),
        (made(OURS, PORTMAP, {"type": "portmap"}), None, [{"type": "portmap"}]),
        (made(OURS, PORTMAP, disableCheck=True), None, []),
        (dict(sorted(made(OURS, dict(sorted(PORTMAP.items())), MESH).items())), None, [MESH]),
        (made(OURS, PORTMAP, MESH, cniVersion="0.3.1"), PartDefect.FIELDS, [MESH]),
        (made(OURS, PORTMAP, MESH, name="mesh"), PartDefect.FIELDS, [MESH]),
        (made(MESH, OURS, PORTMAP), PartDefect.PLUGINS, [MESH]),
        (made(OURS, MESH, PORTMAP), PartDefect.PLUGINS, [MESH]),
        (made(PORTMAP, OURS, MESH), PartDefect.PLUGINS, [MESH]),
        (made(OURS, PORTMAP, MESH, OURS), PartDefect.PLUGINS, [MESH]),
        (made({**OURS, "mtu": 9001}, PORTMAP, MESH), PartDefect.PLUGINS, [MESH]),
        (made(OURS, {**PORTMAP, "snat": False}, MESH), PartDefect.PLUGINS, [MESH]),
        (made(OURS, {**PORTMAP, "snat": 1}, MESH), PartDefect.PLUGINS, [MESH]),
        (made(OURS, MESH), PartDefect.PLUGINS, [MESH]),
        (made(PORTMAP, MESH), PartDefect.PLUGINS, [MESH]),
        (made(OURS, PORTMAP, MESH, "text"), PartDefect.UNUSABLE, [MESH]),
        (made(OURS, PORTMAP, MESH, {"name": "no type"}), PartDefect.UNUSABLE, [MESH]),
        (made(OURS, PORTMAP, {**MESH, "capabilities": ["no object"]}), PartDefect.UNUSABLE, []),
        (made(OURS, PORTMAP, MESH, disableGC="perhaps"), PartDefect.UNUSABLE, [MESH]),
        ({"name": "other", "plugins": [{"type": "bridge"}]}, PartDefect.CHANGED, None),
        ({"type": "bridge"}, PartDefect.CHANGED, None),
        ({}, PartDefect.CHANGED, None),
        (None, PartDefect.CHANGED, None),
    ],
)
def test_only_our_part_is_compared(document: dict[str, Any] | None, defect: PartDefect | None, others: list[Any] | None) -> None:
    """Whatever is wrong is named, the plugins of others are found in their order, and one merge makes the file right."""
    part = others_in(document, OWN)
    assert defect_of(document, OWN) == defect
    assert (None if part is None else list(part.plugins)) == others
    merged = merge(OWN, part or OthersPart())
    assert defect_of(merged, OWN) is None
    assert merged["plugins"] == [OURS, PORTMAP, *(others or [])]
    assert others_in(merged, OWN) == (part or OthersPart())


def test_fields_of_others_are_kept() -> None:
    """Every field that we do not render."""
    part = others_in(made(OURS, PORTMAP, disableCheck=True, comment="mesh"), OWN)
    assert part is not None
    merged = merge(OWN, part)
    assert (merged["disableCheck"], merged["comment"], merged["name"]) == (True, "mesh", "vpc-ipamd")


def test_what_we_rendered_formerly_is_taken_out() -> None:
    """Only unaltered: a plugin of the same type with other settings is somebody else's."""
    own = OwnPart(FIELDS, (OURS,), former=(PORTMAP,))
    document = made(OURS, PORTMAP, {"type": "portmap"}, MESH)
    assert defect_of(document, own) is PartDefect.PLUGINS
    part = others_in(document, own)
    assert part is not None
    assert list(part.plugins) == [{"type": "portmap"}, MESH]


def test_types_are_named_once_and_left_out() -> None:
    """For asking and for removing."""
    part = OthersPart((MESH, {"type": "a"}, MESH))
    assert part.types == ("mesh-cni", "a")
    assert part.without(["mesh-cni"]).plugins == ({"type": "a"},)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'\xef\xbb\xbf{"a": 1}',
        b'{"a": "\xff"}',
        '{"a": 1}'.encode("utf-16"),
        b'{"a": ' + b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1) + b"}",
        b'{"a": ' + b"[" * 100_000,
        b'{"a": ' + b"1" * 10_000 + b"}",
    ],
)
def test_what_a_runtime_cannot_read_is_no_conflist(content: bytes) -> None:
    """Or what we could not write again."""
    assert parse(content) is None


def test_a_readable_one_comes_back_as_it_was() -> None:
    """Text of any kind, large integers and fractions."""
    document = made(OURS, PORTMAP, {"type": "mesh", "a": "\u202e\ud800", "b": 10**300, "c": 0.1, "d": None})
    assert parse(json.dumps(document).encode()) == document
