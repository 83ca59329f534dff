"""`ipamctl thaw`: end what `ipamctl freeze` began. Other causes stay in force: each ends alone."""

from __future__ import annotations

from ipamd.ipamctl.verb import Answer, Verb
from ipamd.ipamctl.verbs.freeze import causes, exit_status


def render(answer: Answer) -> str:
    """Write what did not work, and what freezes the pool still."""
    left = causes(answer)
    words = ["still frozen by what ends by itself:", *left] if left else ["thawed"]
    return "\n".join([answer["problem"], *left] if answer["problem"] else words)


VERB = Verb(
    help="end what `ipamctl freeze` began",
    ask=lambda daemon, _: daemon("Thaw"),
    render=render,
    exit_status=exit_status,
)
