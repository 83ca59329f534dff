"""`ipamctl enis`: network interfaces and their addresses."""

from __future__ import annotations

from ipamd.ipamctl.verb import STATE_COLUMNS, Answer, Verb, table


def render(answer: Answer) -> str:
    """Write one row per ENI, its addresses counted by state, then a line per frozen or excluded ENI; LOST only if an address is."""
    from ipamd.model.eni import MAIN_TABLE  # here, because importing it costs every other verb 20 ms

    states = (*STATE_COLUMNS, "lost") if any(eni["lost_count"] for eni in answer["enis"]) else STATE_COLUMNS
    header = ("ENI", "DEVICE", "STATE", "PRIMARY ADDRESS", "SUBNET", "TABLE", "HOST", *map(str.upper, states))
    text = table(
        header,
        [
            (
                eni["eni_id"],
                eni["device_index"],
                eni["state"],
                eni["primary_address"],
                f"{eni['subnet_id']} {eni['subnet_cidr']}",
                "main" if eni["route_table"] == MAIN_TABLE else eni["route_table"],
                _host(eni),
                *(eni[f"{state}_count"] for state in states),
            )
            for eni in answer["enis"]
        ],
    )
    enis = answer["enis"]
    frozen = [f"{eni['eni_id']} is frozen: {eni['frozen']}" for eni in enis if eni["frozen"]]
    excluded = [f"{eni['eni_id']} gets no new sandbox: {eni['excluded']}" for eni in enis if eni.get("excluded")]
    return "\n".join([text, *frozen, *excluded])


def _host(eni: Answer) -> str:
    if eni["frozen"]:
        return "frozen"
    return "ready" if eni["host_ready"] else "not ready"


VERB = Verb(
    help="network interfaces and their addresses",
    ask=lambda daemon, _: daemon("ListEnis"),
    render=render,
    position=2,
)
