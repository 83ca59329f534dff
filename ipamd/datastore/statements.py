"""How rows of a table are added, replaced and deleted, and how an object of the model is converted to the columns of a row."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import Delete, Insert, Table, Update, bindparam, delete, insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from ipamd.model.attachment import Attachment

Statement = Insert | Update | Delete

Params = dict[str, Any]
"""The values of one row by column."""


def upsert(table: Table) -> Insert:
    """Return the statement that adds a row, or replaces the row with the same primary key."""
    statement = sqlite_insert(table)
    changed = {column.name: statement.excluded[column.name] for column in table.columns if not column.primary_key}
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=changed)


def delete_row(table: Table) -> Delete:
    """Return the statement that deletes the row with a primary key."""
    return delete(table).where(*(column == bindparam(column.name) for column in table.primary_key))


def spelling(table: Table, *omitted: str, **paths: str) -> Callable[[Any], Params]:
    """Make a function that converts an object of the model to a row.

    Args:
        omitted: columns that the row does not get.
        paths: for a column whose attribute has another name, the path of the attribute.
    """
    names = [column.name for column in table.columns if column.name not in omitted]
    read = attrgetter(*(paths.get(name, name) for name in names))
    return lambda value: dict(zip(names, read(value), strict=True))


_ATTACHMENT_PATHS = {
    "container_id": "key.container_id",
    "ifname": "key.ifname",
    "netns_device": "netns_identity.device",
    "netns_inode": "netns_identity.inode",
}


class AttachmentRows(NamedTuple):
    """The statements of a table of attachments, and the function that converts an attachment to its row."""

    insert: Insert
    upsert: Insert
    delete: Delete
    params: Callable[[Attachment], Params]

    @classmethod
    def of(cls, attachments: Table, **paths: str) -> AttachmentRows:
        """Make the statements for a table of attachments.

        Args:
            paths: for a column whose attribute has another name, the path of the attribute.
        """
        params = spelling(attachments, **_ATTACHMENT_PATHS, **paths)
        return cls(insert(attachments), upsert(attachments), delete_row(attachments), params)
