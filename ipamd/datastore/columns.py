"""How columns and tables of the datastore are declared."""

from __future__ import annotations

import sqlite3
from enum import StrEnum

from sqlalchemy import REAL, CheckConstraint, Column, Integer, MetaData, Table, Text
from sqlalchemy.schema import SchemaItem

from ipamd.model.family import read_address

STRICT = sqlite3.sqlite_version_info >= (3, 37, 0)
"""Whether SQLite can refuse a value of the wrong type. Source: sqlite.org/stricttables.html."""

_metadata = MetaData()


READER = "reader"
"""Key in `Column.info` of the function that converts a stored value of the column. Columns that `rows._READERS` lists, and columns
whose values need no conversion, do not have it."""


def text(name: str, *, nullable: bool = False, primary_key: bool = False) -> Column[str]:
    """Return a column of text."""
    return Column(name, Text, nullable=nullable, primary_key=primary_key)


def optional_address(name: str) -> Column[str]:
    """Return a column of an address that may be NULL, with its `READER`."""
    return Column(name, Text, nullable=True, info={READER: read_address})


def optional_choice(name: str, values: type[StrEnum]) -> Column[str]:
    """Return a column that has one of `values`, or NULL, with its `READER`."""
    listed = ", ".join(repr(str(value)) for value in values)
    return Column(name, Text, CheckConstraint(f"{name} IN ({listed})"), nullable=True, info={READER: values})


def texts(*names: str) -> list[Column[str]]:
    """Return columns of text that are never NULL."""
    return [text(name) for name in names]


def real(name: str) -> Column[float]:
    """Return a column of a number that may be NULL."""
    return Column(name, REAL, nullable=True)


def integer(name: str) -> Column[int]:
    """Return a column of an integer."""
    return Column(name, Integer, nullable=False)


def flag(name: str) -> Column[int]:
    """Return a column of a truth value."""
    return Column(name, Integer, CheckConstraint(f"{name} IN (0, 1)"), nullable=False)


def one_of(name: str, values: tuple[str, ...]) -> CheckConstraint:
    """Return the constraint that a column has one of some values."""
    return CheckConstraint(f"{name} IN ({', '.join(repr(str(value)) for value in values)})")


def table(name: str, *parts: SchemaItem, with_rowid: bool = False) -> Table:
    """Return a table of the datastore."""
    return Table(name, _metadata, *parts, sqlite_strict=STRICT, sqlite_with_rowid=with_rowid)
