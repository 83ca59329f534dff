"""Our `dataclass` against the standard library's: the same class, made by both, does the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from ipamd.model import record

OPTIONS = (
    {"frozen": True, "slots": True},
    {"frozen": True},
    {"slots": True},
    {},
    {"slots": True, "eq": False},
    {"frozen": True, "slots": True, "order": True},
)


def made(decorator: Callable[..., Any], options: dict[str, bool]) -> Any:
    """A class with every kind of field that is used here, and two of its objects that differ in what is not compared."""

    class Thing:
        name: str
        hidden: bytes = dataclasses.field(repr=False)
        aside: int = dataclasses.field(default=0, compare=False)
        many: tuple[int, ...] = dataclasses.field(default_factory=tuple)

        def __post_init__(self) -> None:
            if not self.name:
                raise ValueError("no name")

    return decorator(**options)(Thing)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_does_what_the_standard_one_does(options: dict[str, bool]) -> None:
    """Text, equality, hash, what objects have, and the functions that work on any dataclass."""
    told = []
    for decorator in (record.dataclass, dataclasses.dataclass):
        kind = made(decorator, options)
        one, alike, other = kind("a", b"b", many=(1,)), kind("a", b"b", 7, (1,)), kind("a", b"c", many=(1,))
        with pytest.raises(ValueError, match="no name"):
            kind("", b"")
        told.append(
            {
                "text": repr(one),
                "equal": (one == one, one == alike, one == other, one != other, one.__eq__("a")),
                "hash": kind.__hash__ is None or hash(one) == hash(alike),
                "has a hash": kind.__hash__ is not None,
                "members": hasattr(one, "__dict__"),
                "replaced": dataclasses.replace(one, aside=3).aside,
                "document": dataclasses.asdict(one),
            }
        )
    assert told[0] == told[1]


def test_a_class_without_fields_and_one_that_holds_itself() -> None:
    """Two objects of the first are equal; the second's text ends."""

    @record.dataclass(frozen=True, slots=True)
    class Nothing:
        """No fields."""

    @record.dataclass(eq=False)
    class Ring:
        """May hold itself."""

        inner: Any = None

    ring = Ring()
    ring.inner = ring
    assert (Nothing() == Nothing(), hash(Nothing()) == hash(Nothing())) == (True, True)
    assert repr(ring).endswith("Ring(inner=...)")


def test_a_subclass_is_another_class() -> None:
    """As with the standard decorator, objects of different classes are never equal."""

    @record.dataclass(frozen=True)
    class Base:
        """One field."""

        name: str

    class Derived(Base):
        """None more."""

    assert Base("a") != Derived("a")
    assert Derived("a") == Derived("a")
