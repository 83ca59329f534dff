"""`ipamctl freeze`: make no ENI and release nothing until `ipamctl thaw` or the next boot.

A thaw ends this cause of a freeze only. Other causes stay in force until each of them ends.
"""

from __future__ import annotations

from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.tables import filled
from ipamd.ipamctl.verb import Answer, Verb, argument


def causes(answer: Answer) -> list[str]:
    """Write one line per cause of a freeze that is in force."""
    return [f"frozen  {freezing['cause']}: {freezing['reason']} (since {freezing['since']})" for freezing in answer["freezes"]]


def render_freeze(answer: Answer, layout: Layout) -> str:
    """Write the causes of a freeze, and the problem if the freeze was not recorded."""
    problem = [answer["problem"]] if answer["problem"] else []
    return "\n".join(filled(line, layout, indent=8) for line in [*causes(answer), *problem])


FREEZE = Verb(
    help="make no ENI and release nothing, until thaw or the next boot",
    about="Stops every change to ENIs and addresses in EC2, for an investigation. Pods still get free addresses.",
    examples=('ipamctl freeze --reason "ticket 4711"',),
    lay_out=render_freeze,
    rpc="Freeze",
    fields=("reason",),
    arguments=(argument("--reason", default="", metavar="TEXT", help="reason that `ipamctl status` shows"),),
    needs_attention=lambda answer: answer["problem"],
)


def render_thaw(answer: Answer, layout: Layout) -> str:
    """Write the problem if the thaw failed, and the causes of a freeze that remain."""
    remaining = causes(answer)
    if answer["problem"]:
        lines = [answer["problem"], *remaining]
    elif remaining:
        lines = ["still frozen by causes that end by themselves:", *remaining]
    else:
        lines = ["thawed"]
    return "\n".join(filled(line, layout, indent=8) for line in lines)


THAW = Verb(
    help="end the freeze of `ipamctl freeze`",
    about="Ends an operator's freeze. A freeze by the daemon itself ends by itself.",
    examples=("ipamctl thaw",),
    lay_out=render_thaw,
    rpc="Thaw",
    needs_attention=lambda answer: answer["problem"],
)
