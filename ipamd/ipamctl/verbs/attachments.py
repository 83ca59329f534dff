"""`ipamctl attachments`: which sandbox has which address."""

from __future__ import annotations

from ipamd.ipamctl.verb import Answer, Verb, table


def render(answer: Answer) -> str:
    """Write one row per attachment, oldest first; a column tells the lost addresses if there is one."""
    is_any_lost = any(row["lost_since"] for row in answer["attachments"])
    return table(
        ("ADDRESS", "SANDBOX", "IFNAME", "NAME", "ENI", "HOST VETH", "SINCE", "ORIGIN", *["LOST SINCE"] * is_any_lost),
        [
            (
                row["address"],
                row["container_id"],
                row["ifname"],
                row["sandbox_name"] or "-",
                row["eni_id"],
                row["host_veth"],
                row["created_at"],
                row["origin"],
                *[row["lost_since"] or "-"] * is_any_lost,
            )
            for row in answer["attachments"]
        ],
    )


VERB = Verb(
    help="which sandbox has which address",
    ask=lambda daemon, _: daemon("ListAttachments"),
    render=render,
    position=3,
)
