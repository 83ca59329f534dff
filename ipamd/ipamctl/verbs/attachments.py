"""`ipamctl attachments`: which sandbox has which address."""

from __future__ import annotations

from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.legs.texts import EXTRA_ADDRESS_COLUMN, UPLINK_PROBLEM_COLUMN
from ipamd.ipamctl.tables import Columns, table
from ipamd.ipamctl.verb import Answer, Verb


def render_attachments(answer: Answer, layout: Layout) -> str:
    """Write one row per attachment, oldest first. A column that few rows need (`_optional_column`) is left out if no row needs it."""
    rows = answer["attachments"]
    columns: Columns = {
        "POD": "{sandbox_name}",
        "ADDRESS": "{address}",
        **_optional_column(rows, *EXTRA_ADDRESS_COLUMN),
        "ENI": "{eni_id}",
        **_optional_column(rows, "VLAN", "vlan"),
        **_optional_column(rows, *UPLINK_PROBLEM_COLUMN),
        **_optional_column(rows, "LOST SINCE", "lost_since"),
        "SANDBOX": lambda row: layout.short_id(row["container_id"]),
        "IFNAME": "{ifname}",
        "HOST VETH": "{host_veth}",
        "SINCE": "{created_at}",
        "ORIGIN": "{origin}",
    }
    return table(rows, columns, layout, empty="-", wide_only=("IFNAME", "HOST VETH", "SINCE", "ORIGIN"))


def _optional_column(rows: list[Answer], head: str, field: str) -> Columns:
    """A column for a field that few rows have; none if no row has it."""
    if not any(row[field] for row in rows):
        return {}
    return {head: lambda row: row[field] or ""}


ATTACHMENTS = Verb(
    help="which sandbox has which address",
    about="Lists each sandbox with its pod, its address and its ENI.",
    examples=("ipamctl attachments | grep default/web",),
    lay_out=render_attachments,
    rpc="ListAttachments",
)
