"""`ipamctl history`: what happened to an address, a pod, a sandbox or an ENI."""

from __future__ import annotations

from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.tables import Columns, filled, table
from ipamd.ipamctl.verb import SUBJECT, Answer, Verb, argument
from ipamd.ipamctl.verbs.offline import ask_or_read

HISTORY_LIMIT = 100
"""Default of `--limit`. Ours: the life of an address on a busy node in the last hours, on a few screens."""


def render_history(answer: Answer, layout: Layout) -> str:
    """Write who had the address, if the question was about an instant; then one row per entry, oldest first; then the notes."""
    tenures = []
    if answer["at"]:
        tenures = [tenure["sentence"] for tenure in answer["tenures"]]
    tenure_lines = "\n".join(filled(line, layout) for line in tenures)
    notes = "\n".join(filled(line, layout) for line in answer["notes"])
    parts = [tenure_lines, entries(answer["entries"], layout), notes]
    return "\n\n".join(part for part in parts if part)


def entries(rows: list[Answer], layout: Layout) -> str:
    """Write the entries as a table; "" if there are none."""
    if not rows:
        return ""
    columns: Columns = {
        "AT": lambda row: layout.short_time(row["at"]),
        "EVENT": "{event}",
        "POD": "{pod}",
        "ADDRESS": "{address}",
        "SANDBOX": lambda row: row["container_id"] and f"{layout.short_id(row['container_id'])}/{row['ifname']}",
        "ENI": "{eni_id}",
        "DETAIL": _detail,
    }
    return table(rows, columns, layout, empty="-", wide_only=("ENI",))


def _detail(row: Answer) -> str:
    if row["event"] == "refused":
        refusal = f"code {row['code']}: {row['detail']}"
        if row["count"] == 1:
            return refusal
        return f"{row['count']} times since {row['since']}, {refusal}"
    if row["event"] == "missed":
        return f"{row['count']} entries are missing: {row['detail']}"
    if row["event"] == "booted":
        return f"at {row['since']}"
    if row["event"] == "held":
        return f"since {row['since']}"
    return str(row["detail"])


HISTORY = Verb(
    help="what happened to an address, a pod or a sandbox; who had it when; exit 1 if nothing is recorded",
    about="Shows what was recorded about an address, a pod, a sandbox or an ENI. It works without the daemon.",
    examples=("ipamctl history default/web --since 2h",),
    lay_out=render_history,
    rpc="GetHistory",
    # A limit of 0 means the daemon's default. Here a limit below 1 means 1.
    make=lambda daemon, arguments: ask_or_read(daemon, "GetHistory", arguments, limit=max(arguments.limit, 1)),
    arguments=(
        *SUBJECT,
        argument("-n", "--limit", type=int, default=HISTORY_LIMIT, help=f"latest entries (default {HISTORY_LIMIT})"),
    ),
    needs_attention=lambda answer: not (answer["entries"] or answer["tenures"]),
)
