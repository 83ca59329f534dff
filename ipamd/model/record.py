"""`dataclass` as the standard library's, with one function compiled for each class where that one compiles six.

Compiled is `__init__`; the rest are closures over the names of the fields. With 170 classes the standard decorator is a quarter of
what the daemon imports (measured), and pods wait for its start. That nothing assigns to a field of a frozen class is held by the type
checker, which takes this for the standard decorator: while the daemon runs no guard is there, and `__init__` is faster without it.
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
        """The decorator, with the options that are used here; what has an order is left to the standard one."""
        if order:
            return dataclasses.dataclass(frozen=frozen, slots=slots, order=order)

        def decorate(cls: type) -> type:
            made = dataclasses.dataclass(slots=slots, eq=False, repr=False)(cls)
            shown = [one.name for one in fields(made) if one.repr]
            values = attrgetter("__class__", *(one.name for one in fields(made) if one.compare))

            def text(self: Any) -> str:
                return f"{cls.__qualname__}({', '.join([f'{name}={getattr(self, name)!r}' for name in shown])})"

            made.__repr__ = recursive_repr()(text)
            if eq:
                made.__eq__ = lambda self, other: (
                    values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented
                )
                made.__hash__ = (lambda self: hash(values(self))) if frozen else None
            return made

        return decorate
