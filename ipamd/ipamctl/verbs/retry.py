"""`ipamctl retry`: repeat now the requests that EC2 refused, after IAM, a subnet, its tags or a quota was mended."""

from __future__ import annotations

from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.tables import LINE_MAX, filled
from ipamd.ipamctl.verb import Answer, Verb
from ipamd.model.words import fitting


def render_retry(answer: Answer, layout: Layout) -> str:
    """Write each request that is repeated now, and how long it would have waited."""
    lines = [
        f"asked now  {wait['subject']}: {fitting(wait['reason'], LINE_MAX)} ({wait['retry_in_s']:.0f} s were left)"
        for wait in answer["retried"]
    ]
    none = "no request was waiting for a retry; while EC2 throttles, only what pods wait for is requested"
    subnets = "asked now  DescribeSubnets: new tags of subnets count from its answer on"
    lines = [*(lines or [none]), subnets, "next       `ipamctl status` shows what EC2 says"]
    return "\n".join(filled(line, layout, indent=11) for line in lines)


RETRY = Verb(
    help="ask EC2 now for what it refused: after IAM, a subnet or a quota was mended",
    about="Ends the pauses after refusals of EC2, and describes the subnets again. Run it after the cause was mended, or a subnet was "
    "tagged; otherwise each call waits until its pause ends.",
    examples=("ipamctl retry",),
    lay_out=render_retry,
    rpc="Retry",
)
