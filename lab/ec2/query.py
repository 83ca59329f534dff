"""Reads the EC2 query protocol: flat form fields such as `Filter.1.Value.2`, typed and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import parse_qsl

from lab.vpc import errors

T = TypeVar("T")


@dataclass(frozen=True)
class Filter:
    """One filter: the values are alternatives, several filters must all hold."""

    name: str
    values: tuple[str, ...]


class Params:
    """The fields of one call. A field that is absent and required is EC2's MissingParameter."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self.fields = fields

    @staticmethod
    def decode(form: bytes) -> Params:
        """Decode an urlencoded form."""
        return Params(dict(parse_qsl(form.decode(), keep_blank_values=True)))

    def text(self, name: str) -> str | None:
        """Return a field, None when absent."""
        return self.fields.get(name)

    def required(self, name: str) -> str:
        """Return a field that must be there."""
        value = self.fields.get(name)
        if not value:
            raise errors.missing_parameter(name[0].lower() + name[1:])
        return value

    def integer(self, name: str) -> int | None:
        """Return a whole number, None when absent."""
        value = self.fields.get(name)
        try:
            return None if value is None else int(value)
        except ValueError as exc:
            raise errors.invalid_value(f"Value ({value}) for parameter {name} is invalid. Expecting an integer.") from exc

    def flag(self, name: str) -> bool | None:
        """Return a truth value, None when absent."""
        value = self.fields.get(name)
        if value is None or value in ("true", "false"):
            return None if value is None else value == "true"
        raise errors.invalid_value(f"Value ({value}) for parameter {name} is invalid. Expecting true or false.")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the list `name.1`, `name.2`, ... in its order."""
        numbered = [
            (int(rest), value)
            for key, value in self.fields.items()
            if (rest := key.removeprefix(f"{name}.")) != key and rest.isdigit()
        ]
        return tuple(value for _, value in sorted(numbered))

    def structures(self, name: str) -> list[Params]:
        """Return the list of structures `name.1.x`, `name.2.x`, ... in its order."""
        found: dict[int, dict[str, str]] = {}
        for key, value in self.fields.items():
            head, _, rest = key.removeprefix(f"{name}.").partition(".")
            if key.startswith(f"{name}.") and head.isdigit() and rest:
                found.setdefault(int(head), {})[rest] = value
        return [Params(found[number]) for number in sorted(found)]

    def filters(self) -> list[Filter]:
        """Return the filters."""
        return [Filter(entry.required("Name"), entry.texts("Value")) for entry in self.structures("Filter")]

    def tags(self, name: str) -> dict[str, str]:
        """Return the tags of the list `name`."""
        return {entry.required("Key"): entry.text("Value") or "" for entry in self.structures(name)}


def parsed(kind: Callable[[str], T], values: Iterable[str]) -> tuple[T, ...]:
    """Read addresses or prefixes of one kind (`IPv4Address`, `IPv6Network`), or refuse them."""
    found = []
    for value in values:
        try:
            found.append(kind(value))
        except ValueError as exc:
            raise errors.invalid_value(f"invalid value for parameter address or prefix: {value}") from exc
    return tuple(found)
