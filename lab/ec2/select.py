"""Which of many resources a Describe shows: filters, then pages.

A page token names the last resource shown by its sort key, so that pages stay right while resources come and go.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from lab.ec2.query import Filter, Params
from lab.vpc import errors

Item = TypeVar("Item")
Fields = Mapping[str, Callable[[Item], Iterable[object]]]  # filter name -> the values an item has under it


@dataclass(frozen=True)
class Page(Generic[Item]):
    """Some items, and the token for the next ones."""

    items: list[Item]
    next_token: str | None


def select(
    items: Iterable[Item],
    filters: Iterable[Filter],
    fields: Fields[Item],
    tags_of: Callable[[Item], Mapping[str, str]] = lambda _: {},
) -> list[Item]:
    """Keep the items that satisfy all filters. Raises: Ec2Error for a filter that the API does not have."""
    kept = list(items)
    for wanted in filters:
        values_of = _values_of(wanted.name, fields, tags_of)
        patterns = [_pattern(value) for value in wanted.values]
        kept = [item for item in kept if any(p.fullmatch(v) for v in map(_text, values_of(item)) for p in patterns)]
    return kept


def page(
    items: Iterable[Item],
    params: Params,
    *,
    key: Callable[[Item], str],
    lowest: int = 5,
    highest: int = 1000,
    largest: int = 0,
) -> Page[Item]:
    """Cut one page out of the items, which are sorted by `key` first. Without MaxResults all are shown.

    Args:
        lowest, highest: what MaxResults may be.
        largest: what a page has at most, whatever was asked for, when it is above 0 and MaxResults was given.
    """
    size = params.integer("MaxResults")
    if size is not None and not lowest <= size <= highest:
        bound = f"greater than {lowest}" if size < lowest else f"less than {highest}"
        raise errors.invalid_value(f"Value ( {size} ) for parameter maxResults is invalid. Expecting a value {bound}.")
    rest = sorted(items, key=key)
    if token := params.text("NextToken"):
        after = _decode(token)
        rest = [item for item in rest if key(item) > after]
    if size is not None and largest:
        size = min(size, largest)
    if size is None or len(rest) <= size:
        return Page(rest, None)
    return Page(rest[:size], base64.urlsafe_b64encode(key(rest[size - 1]).encode()).decode())


def ordinal_key(ordinal: int) -> str:
    """Turn a number into a string that sorts like it."""
    return f"{ordinal:012d}"


def _values_of(
    name: str, fields: Fields[Item], tags_of: Callable[[Item], Mapping[str, str]]
) -> Callable[[Item], Iterable[object]]:
    if name == "tag-key":
        return lambda item: tags_of(item).keys()
    if name.startswith("tag:"):
        tag = name.removeprefix("tag:")
        return lambda item: [tags_of(item)[tag]] if tag in tags_of(item) else []
    if name not in fields:
        raise errors.invalid_value(f"The filter '{name}' is invalid")
    return fields[name]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pattern(value: str) -> re.Pattern[str]:
    """Translate EC2's wildcards: * any, ? one, backslash quotes."""
    parts = re.findall(r"\\.|.", value, re.DOTALL)
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(part, re.escape(part[-1])) for part in parts), re.DOTALL)


def _decode(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError) as exc:
        raise errors.Ec2Error("InvalidPaginationToken", "The pagination token is not valid.") from exc
