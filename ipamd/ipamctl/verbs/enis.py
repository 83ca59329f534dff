"""`ipamctl enis`: network interfaces and their addresses."""

from __future__ import annotations

from collections.abc import Sequence

from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.tables import STATES, Columns, filled, table
from ipamd.ipamctl.verb import Answer, Verb
from ipamd.model.words import usable


def render_enis(answer: Answer, layout: Layout) -> str:
    """Write one row per ENI with its addresses counted by state, then the CIDR of each subnet, and a line per frozen or
    excluded ENI.

    The column LOST is shown only if an address is lost, the column POOL only if an ENI is of a pool of pods.
    """
    from ipamd.model.eni import MAIN_TABLE  # imported here, to save all other verbs 20 ms

    enis = answer["enis"]
    has_lost_addresses = any(eni["lost_count"] for eni in enis)
    states = list(STATES)
    if has_lost_addresses:
        states.append("lost")
    pool_column: Columns = {}
    if any(eni["pool"] for eni in enis):
        pool_column = {"POOL": lambda eni: eni["pool"] or "default"}
    columns: Columns = {
        "ENI": "{eni_id}",
        "DEVICE": "{device_index}",
        "STATE": "{state}",
        "PRIMARY ADDRESS": "{primary_address}",
        "SUBNET": "{subnet_id}",
        **pool_column,
        "CIDR": "{subnet_cidr}",
        "TABLE": lambda eni: {MAIN_TABLE: "main"}.get(eni["route_table"], eni["route_table"]),
        "HOST": _host_state,
        **_address_columns(states, layout),
    }
    lines = [table(enis, columns, layout, wide_only=("CIDR", "TABLE", "PRIMARY ADDRESS"))]
    if not layout.is_wide:
        lines += _cidrs(enis, layout)
    return "\n".join([*lines, *_notes(enis, layout)])


def _cidrs(enis: Sequence[Answer], layout: Layout) -> list[str]:
    """Write a line with the CIDR of each subnet, because a narrow table has no room for a column."""
    cidrs = {eni["subnet_id"]: eni["subnet_cidr"] for eni in enis if eni["subnet_id"] and eni["subnet_cidr"]}
    return [filled(f"{subnet_id} is {cidr}", layout, indent=4) for subnet_id, cidr in cidrs.items()]


def _notes(enis: Sequence[Answer], layout: Layout) -> list[str]:
    """Write a line for each frozen ENI, then one for each excluded ENI."""
    frozen = [f"{eni['eni_id']} is frozen: {eni['frozen_reason']}" for eni in enis if eni["frozen_reason"]]
    excluded = [f"{eni['eni_id']} gets no new sandbox: {eni['excluded_reason']}" for eni in enis if eni["excluded_reason"]]
    return [filled(note, layout, indent=4) for note in (*frozen, *excluded)]


def _address_columns(states: Sequence[str], layout: Layout) -> Columns:
    """Return a column for each state on a wide screen; otherwise one column that names the states with at least one address."""
    if not layout.is_wide:
        return {"ADDRESSES": lambda eni: ", ".join(_count(eni, state) for state in states if eni[f"{state}_count"]) or "none"}
    return {**{state.upper(): f"{{{state}_count}}" for state in states}, "FREE": lambda eni: usable(eni["free_count"])}


def _count(eni: Answer, state: str) -> str:
    return f"{usable(eni[f'{state}_count'])} {state}"


def _host_state(eni: Answer) -> str:
    if eni["frozen_reason"]:
        return "frozen"
    if eni["host_ready"]:
        return "ready"
    return "not ready"


ENIS = Verb(
    help="network interfaces and their addresses",
    about="Lists each ENI with its addresses by state, and why an ENI gives no addresses.",
    examples=("ipamctl enis -o wide",),
    lay_out=render_enis,
    rpc="ListEnis",
)
