"""A replacement for the standard library's `dataclass` that compiles one function per class instead of six.

Only `__init__` is compiled. `__repr__` is one function for all classes, which saves 0.2 MiB (measured); `__eq__` and `__hash__` are
closures over the names of the fields. When the daemon had 170 such classes, the standard decorator took a quarter of its import time
(measured), and pods wait for the daemon's start. The type checker treats this decorator as the standard one, and rejects assignments
to the fields of frozen classes. At run time such assignments are possible, which makes `__init__` faster.
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

    @recursive_repr()
    def _text(self: Any) -> str:
        shown = [f"{class_field.name}={getattr(self, class_field.name)!r}" for class_field in fields(self) if class_field.repr]
        return f"{self.__class__.__qualname__}({', '.join(shown)})"

    def dataclass(*, frozen: bool = False, slots: bool = False, eq: bool = True, order: bool = False) -> Callable[[type], type]:
        """Decorate a class. Only the options that the daemon uses exist; a class with `order` gets the standard decorator."""
        if order:
            return dataclasses.dataclass(frozen=frozen, slots=slots, order=order)

        def decorate(cls: type) -> type:
            # If a class has no docstring, the standard decorator makes one. This would take a twentieth of the daemon's start time.
            cls.__doc__ = cls.__doc__ or cls.__name__
            new_class = dataclasses.dataclass(slots=slots, eq=False, repr=False)(cls)
            if "__weakref__" in vars(new_class):
                del new_class.__weakref__  # it belongs to the class without slots, which would stay in memory with it
            values = attrgetter("__class__", *(class_field.name for class_field in fields(new_class) if class_field.compare))

            new_class.__repr__ = _text
            if eq:
                new_class.__eq__ = lambda self, other: (
                    values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented
                )
                new_class.__hash__ = (lambda self: hash(values(self))) if frozen else None
            return new_class

        return decorate
