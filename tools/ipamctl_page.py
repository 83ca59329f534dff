"""Write docs/ipamctl.md: its head is written by hand, its verbs come from the parser, and its fields from the comments in the
proto."""

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
"""The fields of those verbs whose answer is not a message of the proto, because `ipamctl` itself makes it.

tests/unit/docs/test_ipamctl_page.py compares the fields with what the verbs print.
"""

ELSEWHERE: Mapping[str, str] = {
    "probe": "Its report is described in [assumptions](assumptions.md).",
    "convert-values": "It prints values of [our chart](../manifests/README.md), below a comment for each value without a counterpart.",
    "convert-eniconfig": "It prints the file of [custom networking](subnets.md) as it is.",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an answer.

    `path`: for example `pool.free_count` or `stages[].name`. `message`: the name of the proto's message that has the field; "" if the
    field is not from the proto.
    """

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
    """Return (message, field) -> the comment beside the field in the proto."""
    comments = {}
    for message, body in re.findall(r"^message (\w+) \{([^}]*)\}", PROTO.read_text(), re.M):
        for name, text in re.findall(r"(\w+) = \d+;[ \t]*(?://[ \t]*(.*))?", body):
            comments[message, name] = text.strip()
    return comments


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
    shown = list(fields(reply, sentences())) if reply is not None else [Field(*pair) for pair in _own(name)]
    return "\n".join([*lines, "", "| Field | Meaning |", "|---|---|", *_rows(name, shown, seen)])


def _rows(verb: str, found: list[Field], seen: dict[object, str]) -> Iterator[str]:
    """Yield the rows of a verb's table of fields.

    Neighbours with the same meaning share a row. A message that the page has already explained for an earlier verb gets one row, which
    refers to that verb.
    """
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
    """Return what a row says about a field: its kind, unless this is text, and its sentence."""
    return "; ".join(part for part in (field.kind.removeprefix("text"), field.text) if part)


def _own(name: str) -> Iterator[tuple[str, str, str]]:
    numbers = ("bytes", "ms")
    for path, text in OWN[name].items():
        yield path, "number" if path.rpartition(".")[2] in numbers else "text", text


def _short(usage: str) -> str:
    """Return the usage without the options that every verb has."""
    return re.sub(r" \[-h\]| \[-o \{[\w,]+\}\]| \[--socket SOCKET\]", "", usage)


def _spelt(action: argparse.Action) -> str:
    if not action.option_strings:
        return "\\|".join(map(str, action.choices)) if action.choices else str(action.metavar or action.dest).replace("|", "\\|")
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    return ", ".join(action.option_strings) + value


def _cell(text: str) -> str:
    return text.replace("%%", "%").replace("|", "\\|")
