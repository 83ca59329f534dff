"""A replacement for the standard library's `dataclass` that compiles one function per class instead of six.

Only `__init__` is compiled; the other methods are closures over the names of the fields. When the daemon had 170 such classes, the
standard decorator took a quarter of its import time (measured), and pods wait for the daemon's start. The type checker treats this
decorator as the standard one, and rejects assignments to the fields of frozen classes. At run time such assignments are possible,
which makes `__init__` faster.
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
        """Decorate a class. Only the options that the daemon uses exist; a class with `order` gets the standard decorator."""
        if order:
            return dataclasses.dataclass(frozen=frozen, slots=slots, order=order)

        def decorate(cls: type) -> type:
            # If a class has no docstring, the standard decorator makes one. This would take a twentieth of the daemon's start time.
            cls.__doc__ = cls.__doc__ or cls.__name__
            new_class = dataclasses.dataclass(slots=slots, eq=False, repr=False)(cls)
            shown_names = [class_field.name for class_field in fields(new_class) if class_field.repr]
            values = attrgetter("__class__", *(class_field.name for class_field in fields(new_class) if class_field.compare))

            def text(self: Any) -> str:
                return f"{cls.__qualname__}({', '.join([f'{name}={getattr(self, name)!r}' for name in shown_names])})"

            new_class.__repr__ = recursive_repr()(text)
            if eq:
                new_class.__eq__ = lambda self, other: (
                    values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented
                )
                new_class.__hash__ = (lambda self: hash(values(self))) if frozen else None
            return new_class

        return decorate
