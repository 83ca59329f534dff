"""`ipamctl enis`: network interfaces and their addresses."""

from __future__ import annotations

from ipamd.ipamctl.table import STATE_COLUMNS, table
from ipamd.ipamctl.verb import Answer, Verb


def render(answer: Answer) -> str:
    """Write one row per ENI, its addresses counted by state."""
    from ipamd.model.eni import MAIN_TABLE  # here, because importing it costs every other verb 20 ms

    header = ("ENI", "DEVICE", "STATE", "PRIMARY ADDRESS", "SUBNET", "TABLE", "HOST", *map(str.upper, STATE_COLUMNS))
    return table(
        header,
        [
            (
                eni["eni_id"],
                eni["device_index"],
                eni["state"],
                eni["primary_address"],
                eni["subnet_cidr"],
                "main" if eni["route_table"] == MAIN_TABLE else eni["route_table"],
                "ready" if eni["host_ready"] else "not ready",
                *(eni[f"{state}_count"] for state in STATE_COLUMNS),
            )
            for eni in answer["enis"]
        ],
    )


VERB = Verb(
    help="network interfaces and their addresses",
    ask=lambda daemon, _: daemon("ListEnis"),
    render=render,
    position=2,
)
