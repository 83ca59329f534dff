"""The page about `ipamctl`: its head by hand, verbs from the parser, and fields from the proto, where each has its sentence."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from ipamd.ipamctl.main import VERBS, make_parser
from ipamd.ipamctl.verb import Verb
from ipamd.pb import introspection_pb2 as pb

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto" / "vpc_ipamd" / "v1" / "introspection.proto"
HEAD = ROOT / "tools" / "ipamctl_head.md"

OWN: Mapping[str, Mapping[str, str]] = {
    "watch": {"at": "RFC 3339, UTC", "kind": "daemon, verdict, pool, attachment", "text": "what it is now; `+` came, `-` went"},
    "bundle": {
        "file": "where the archive is",
        "bytes": "of the archive",
        "parts[].name": "file in the archive",
        "parts[].description": "what it holds",
        "parts[].bytes": "before compression",
        "parts[].duration_s": "how long it took",
        "parts[].problem": "empty: it is whole",
        "parts[].kept_count": "fields and words that are in it",
        "parts[].left_out_count": "fields and words that might be a secret, replaced by their length or left out",
    },
    "page": {"url": "where it is", "token_required": "true, false"},
    "completion": {"lines[]": "of the script"},
}
"""Fields of verbs that do their work themselves; tests/unit/docs/test_ipamctl_page.py compares them with what they print."""

ELSEWHERE: Mapping[str, str] = {
    "probe": "Its report is described in [assumptions](assumptions.md).",
    "convert-values": "It prints values of [our chart](../manifests/README.md), below a comment for each value without a counterpart.",
    "convert-eniconfig": "It prints the file of [custom networking](subnets.md) as it is.",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an answer, by its path: `pool.free_count`, `stages[].name`; of the proto also its innermost message."""

    path: str
    kind: str
    text: str
    message: str = ""


def page() -> str:
    """Write the page."""
    parser = make_parser()
    (subparsers,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    parts = [HEAD.read_text().rstrip("\n")]
    seen: dict[object, str] = {}
    for name, verb in VERBS.items():
        parts.append(_section(name, verb, subparsers.choices[name], seen))
    return "\n\n".join(parts) + "\n"


def fields(message: Descriptor, texts: Mapping[tuple[str, str], str], *, before: str = "") -> Iterator[Field]:
    """Walk the fields of a message in the proto's order."""
    for field in message.fields:
        path = f"{before}{field.name}{'[]' if field.is_repeated else ''}"
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            assert field.message_type is not None
            yield from fields(field.message_type, texts, before=f"{path}.")
        else:
            yield Field(path, _kind(field), texts.get((message.name, field.name), ""), message.name)


def sentences() -> dict[tuple[str, str], str]:
    """Message and field -> the comment beside it in the proto."""
    found = {}
    for message, body in re.findall(r"^message (\w+) \{([^}]*)\}", PROTO.read_text(), re.M):
        for name, text in re.findall(r"(\w+) = \d+;[ \t]*(?://[ \t]*(.*))?", body):
            found[message, name] = text.strip()
    return found


def _kind(field: Any) -> str:
    kinds = {
        FieldDescriptor.CPPTYPE_STRING: "text",
        FieldDescriptor.CPPTYPE_BOOL: "true, false",
        FieldDescriptor.CPPTYPE_UINT64: "number",
        FieldDescriptor.CPPTYPE_INT64: "number",
    }
    return kinds.get(field.cpp_type, "number")


def _section(name: str, verb: Verb, parser: argparse.ArgumentParser, seen: dict[object, str]) -> str:
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    lines = [f"### {name}", "", verb.about, "", f"    {_short(usage)}"]
    arguments = [action for action in parser._actions if not {"-h", "-o", "--socket"} & set(action.option_strings)]
    table = [f"| `{_spelt(action)}` | {_cell(action.help or '')} |" for action in arguments]
    if known := set(table) <= set(seen) and seen.get(next(iter(table), "")):
        lines += ["", f"Arguments as of [{known}](#{known})."]
    elif table:
        lines += ["", "| Argument | Meaning |", "|---|---|", *table]
    seen.update((row, name) for row in table if row not in seen)
    reply = pb.DESCRIPTOR.message_types_by_name.get(f"{verb.rpc}Reply")
    if name in ELSEWHERE:
        return "\n".join([*lines, "", ELSEWHERE[name]])
    found = list(fields(reply, sentences())) if reply is not None else [Field(*pair) for pair in _own(name)]
    return "\n".join([*lines, "", "| Field | Meaning |", "|---|---|", *_rows(name, found, seen)])


def _rows(verb: str, found: list[Field], seen: dict[object, str]) -> Iterator[str]:
    """A row for neighbours that mean the same, and one for a whole message that an earlier verb has."""
    for (message, path), group in groupby(found, key=lambda field: (field.message, field.path.rpartition(".")[0])):
        earlier = seen.get(message, "").split()
        if path and earlier and earlier[0] != verb:
            yield f"| `{path}.*` | as `{earlier[1]}.*` of [{earlier[0]}](#{earlier[0]}) |"
            continue
        if path and message:
            seen.setdefault(message, f"{verb} {path}")
        for meaning, same in groupby(group, key=_meaning):
            yield f"| {', '.join(f'`{field.path}`' for field in same)} | {_cell(meaning)} |"


def _meaning(field: Field) -> str:
    """What the field says; before it its kind, unless it is text."""
    return "; ".join(part for part in (field.kind.removeprefix("text"), field.text) if part)


def _own(name: str) -> Iterator[tuple[str, str, str]]:
    numbers = ("bytes", "ms")
    for path, text in OWN[name].items():
        yield path, "number" if path.rpartition(".")[2] in numbers else "text", text


def _short(usage: str) -> str:
    """The usage without the options that every verb has."""
    return re.sub(r" \[-h\]| \[-o \{[\w,]+\}\]| \[--socket SOCKET\]", "", usage)


def _spelt(action: argparse.Action) -> str:
    if not action.option_strings:
        return "\\|".join(map(str, action.choices)) if action.choices else str(action.metavar or action.dest).replace("|", "\\|")
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    return ", ".join(action.option_strings) + value


def _cell(text: str) -> str:
    return text.replace("%%", "%").replace("|", "\\|")
