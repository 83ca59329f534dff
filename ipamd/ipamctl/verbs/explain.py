"""`ipamctl explain`: why an address or a sandbox is as it is."""

from __future__ import annotations

from ipamd.ipamctl.verb import Answer, Verb, subject_argument
from ipamd.ipamctl.verbs import history


def render(answer: Answer) -> str:
    """Write the sentences, then the history."""
    return "\n".join([*answer["sentences"], "", history.render({"entries": answer["history"]})])


VERB = Verb(
    help="why an address or a sandbox is as it is",
    ask=lambda daemon, arguments: daemon("Explain", subject=arguments.subject),
    render=render,
    arguments=subject_argument,
    position=6,
)
