"""`dataclass` as the standard library's, with one function compiled for each class where that one compiles six.

What is compiled is `__init__`; the rest are closures over the names of the fields. With 170 classes the standard decorator is a third
of what the daemon imports (measured), and every pod that waits for a restart waits for it. That nothing assigns to a field of a frozen
class is the type checker's to hold, which takes this for the standard decorator: the guard is not there while the daemon runs, and
`__init__` is three times as fast without it. Order and inheritance from a class with fields are left to the standard one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import asdict, astuple, field, fields, replace
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["asdict", "astuple", "dataclass", "field", "fields", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool = False, slots: bool = False, eq: bool = True, order: bool = False) -> Callable[[type], type]:
        """The decorator, with those of its options that are used here."""
        if order:
            return dataclasses.dataclass(frozen=frozen, slots=slots, eq=eq, order=order)

        def decorate(cls: type) -> type:
            made = dataclasses.dataclass(slots=slots, eq=False, repr=False)(cls)
            described = fields(made)
            made.__repr__ = _repr([one.name for one in described if one.repr])
            if eq:
                values = _values([one.name for one in described if one.compare])
                made.__eq__, made.__hash__ = _eq(values), _hash(values) if frozen else None
            return made

        return decorate


def _values(names: list[str]) -> Callable[[Any], object]:
    """What is compared, of one object."""
    return attrgetter(*names) if names else lambda _one: ()


def _eq(values: Callable[[Any], object]) -> Callable[[Any, Any], bool]:
    def __eq__(self: Any, other: Any) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(values: Callable[[Any], object]) -> Callable[[Any], int]:
    return lambda self: hash(values(self))


def _repr(names: list[str]) -> Callable[[Any], str]:
    def __repr__(self: Any) -> str:
        return f"{self.__class__.__qualname__}({', '.join([f'{name}={getattr(self, name)!r}' for name in names])})"

    return recursive_repr()(__repr__)
