"""Read JSON objects with fixed keys strictly: every unknown key and every wrong type is a problem. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ipamd.model.words import printable

WORDS = {dict: "an object", bool: "true or false", str: "a string", list: "a list", int: "a whole number"}

SHOWN_MAX = 80
"""The most characters of a wrong value that a problem shows. Ours: people read the problems in `ipamctl status`, so the value must be
short."""


def read_object(text: str, problems: list[str]) -> object:
    """Read a text as JSON, and add every key that an object has twice to `problems`.

    Raises: ValueError or RecursionError if it is not JSON.
    """
    return json.loads(text, object_pairs_hook=lambda pairs: _object(pairs, problems))


def checked_fields(
    value: object, form: Mapping[str, type], *, location: str, needed: tuple[str, ...], problems: list[str]
) -> dict[str, Any]:
    """Return the fields of an object that have the right type; {} if the value is not an object. Every fault is added to `problems`.

    Args:
        form: key -> the type of its value.
        location: where the object is in the text, for people.
        needed: the keys that must be there.
    """
    if not isinstance(value, dict):
        problems.append(f"{location}: must be an object, not {shown(value)}")
        return {}
    problems += [f"{location}: {shown(key)} is not known (known: {', '.join(form)})" for key in value if key not in form]
    problems += [f"{location}: {key} is missing" for key in needed if key not in value]
    fields = {}
    for key, kind in form.items():
        if key not in value:
            continue
        if _is_of_kind(value[key], kind):
            fields[key] = value[key]
        else:
            problems.append(f"{location}: {key} must be {WORDS[kind]}, not {shown(value[key])}")
    return fields


def _is_of_kind(value: object, kind: type) -> bool:
    is_number_and_bool = kind is int and isinstance(value, bool)  # a bool is an int in Python, but not a number in JSON
    return isinstance(value, kind) and not is_number_and_bool


def shown(value: object) -> str:
    """Return a value as JSON, printable and short."""
    return printable(json.dumps(value))[:SHOWN_MAX]


def _object(pairs: list[tuple[str, Any]], problems: list[str]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    problems += [f"{shown(name)} is there twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    return dict(pairs)
