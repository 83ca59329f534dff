"""`ipamctl retry`: repeat at once the requests that EC2 refused, for use after IAM, a subnet, its tags or a quota was corrected."""

from __future__ import annotations

import time
from typing import Any

from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.tables import LINE_MAX, filled
from ipamd.ipamctl.verb import Answer, Ask, Verb
from ipamd.model.words import fitting

OUTCOME_WAIT_S = 5.0
"""How long the verb waits for EC2's answers. Ours: most calls are answered within a second, and a person waits at the terminal."""

OUTCOME_PAUSE_S = 0.25
"""The pause between two questions to the daemon about the outcome."""


def ask_retry(daemon: Ask, _: Any) -> Answer:
    """Have the refused requests repeated, and wait for their outcome for at most OUTCOME_WAIT_S.

    Returns: the daemon's answer, with `outcomes`: the same requests as far as EC2 has answered. Raises: VerbError.
    """
    answer = daemon("Retry")
    deadline = time.monotonic() + OUTCOME_WAIT_S
    while answer["retried"] and time.monotonic() < deadline:
        outcomes = daemon("Retry", outcome_only=True)["outcomes"]
        if not outcomes:  # the daemon of another release does not know the question
            break
        answer["outcomes"] = outcomes
        if all(outcome["outcome"] != "asked" for outcome in outcomes):
            break
        time.sleep(OUTCOME_PAUSE_S)
    return answer


def render_retry(answer: Answer, layout: Layout) -> str:
    """Write what EC2 had refused, that it is asked now, and what it answered."""
    retried = answer["retried"]
    lines = [f"refused before  {fitting(refused['reason'], LINE_MAX)}" for refused in retried]
    calls = list(dict.fromkeys(operation for refused in retried for operation in refused["operations"]))
    if retried:
        lines.append(f"asked now       {', '.join(calls) or 'what was refused'}")
    else:
        lines.append("no request was waiting for a retry; while EC2 throttles, only what pods wait for is requested")
    lines.append("asked now       DescribeSubnets: new tags of subnets count from its answer on")
    lines += _outcome_lines(answer)
    lines.append("next            `ipamctl status` shows what EC2 says")
    return "\n".join(filled(line, layout, indent=16) for line in lines)


def _outcome_lines(answer: Answer) -> list[str]:
    """Write one line for each outcome; one in all for requests without an answer."""
    calls = {refused["subject"]: ", ".join(refused["operations"]) for refused in answer["retried"]}
    outcomes = answer.get("outcomes", [])
    lines = []
    for outcome in outcomes:
        name = calls.get(outcome["subject"]) or "the request"
        if outcome["outcome"] == "accepted":
            lines.append(f"accepted        {name}")
        elif outcome["outcome"] == "refused":
            reason = outcome["reason"] or name
            lines.append(f"refused again   {fitting(reason, LINE_MAX)}")
            if outcome["next"]:
                lines.append(f"                {fitting(outcome['next'], LINE_MAX)}")
    if any(outcome["outcome"] == "asked" for outcome in outcomes):
        lines.append(f"no answer yet   within {OUTCOME_WAIT_S:.0f} s, or the request is not needed any more")
    return list(dict.fromkeys(lines))


RETRY = Verb(
    help="ask EC2 now for what it refused: after IAM, a subnet or a quota was mended",
    about="Ends the pauses after refusals of EC2, describes the subnets again, and waits some seconds for EC2's answers. Run it after "
    "the cause was mended, or a subnet was tagged; otherwise each call waits until its pause ends.",
    examples=("ipamctl retry",),
    lay_out=render_retry,
    rpc="Retry",
    make=ask_retry,
)
