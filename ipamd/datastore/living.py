"""Find the sandboxes in a datastore's file that may still be running. A file of a pool of the other IP family is set aside only if it
has no such sandbox (I2).

The daemon that wrote the file has stopped, and the new one refuses to start while such a sandbox runs. The sandboxes may have ended
meanwhile, because the node was drained, but no daemon recorded their end in the file. Evidence for the end of a sandbox: its network
namespace is gone, the plugin spooled its DEL because no daemon answered, or the kernel has no link and no route of the sandbox. A
source that cannot be read is no evidence (I11).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from ipamd.datastore import schema
from ipamd.model.errors import IpamError
from ipamd.model.family import read_address
from ipamd.model.ids import AttachmentKey, ContainerId, IfName
from ipamd.model.kernel import KernelSurvey

SurveyKernel = Callable[[], KernelSurvey]
"""Reads from the kernel the links and routes of sandboxes, of IPv4 and IPv6. Raises: IpamError."""


def living_sandboxes(
    connection: Connection, *, spooled: Collection[AttachmentKey], survey_kernel: SurveyKernel | None
) -> list[str]:
    """List the container IDs of the recorded sandboxes that may still be running, each once.

    Args:
        spooled: keys whose DEL is in the spool.
        survey_kernel: None if the kernel cannot be read.
    """
    rows = []
    for row in _recorded_sandboxes(connection):
        if _key(row) not in spooled and _may_have_namespace(row):
            rows.append(row)
    has_unknown_namespace = any(not row.netns for row in rows)
    if has_unknown_namespace and survey_kernel is not None:
        rows = _without_unwired(rows, survey_kernel)
    return list(dict.fromkeys(row.container_id for row in rows))


_COLUMNS = ("container_id", "ifname", "address", "host_veth", "netns", "netns_device", "netns_inode")


def _recorded_sandboxes(connection: Connection) -> list[Any]:
    """Read the recorded sandboxes from every table that has some."""
    rows = list[Any]()
    for table in schema.ATTACHMENT_TABLES:
        columns = (table.c[name] for name in _COLUMNS)
        rows += connection.execute(select(*columns)).all()
    return rows


def _key(row: Any) -> AttachmentKey:
    return AttachmentKey(ContainerId(row.container_id), IfName(row.ifname))


def _may_have_namespace(row: Any) -> bool:
    """Whether a sandbox's network namespace may still exist.

    True also if the namespace is not recorded, as for adopted and imported sandboxes, or if its path cannot be examined.
    """
    if not row.netns:
        return True
    try:
        status = Path(row.netns).stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return (status.st_dev, status.st_ino) == (row.netns_device, row.netns_inode)


def _without_unwired(rows: list[Any], survey_kernel: SurveyKernel) -> list[Any]:
    """Leave out sandboxes with an unknown namespace that have no trace in the kernel: a veth pair is deleted with its namespace."""
    try:
        survey = survey_kernel()
    except IpamError:
        return rows
    links = survey.host_veths
    keys = {link.key for link in links if not link.is_dying}
    names = {link.name for link in links if not link.is_dying}
    routed = survey.routes.keys() | survey.own_routes.keys()

    def may_be_wired(row: Any) -> bool:
        return _key(row) in keys or row.host_veth in names or read_address(row.address) in routed

    return [row for row in rows if row.netns or may_be_wired(row)]
