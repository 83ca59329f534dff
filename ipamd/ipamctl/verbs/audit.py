"""`ipamctl audit`: compare datastore, kernel, runtime and EC2."""

from __future__ import annotations

from ipamd.ipamctl.layout import Colour, Layout
from ipamd.ipamctl.tables import filled, table
from ipamd.ipamctl.verb import Answer, Verb, argument
from ipamd.model.words import counted


def render_audit(answer: Answer, layout: Layout) -> str:
    """Write a line for each source that did not answer, then one row per finding, worst first."""
    lines = [filled(f"silent: {sentence}", layout, indent=8) for sentence in answer["unavailable_sources"]]
    if not answer["findings"]:
        agree = "the sources agree"
        if answer["unavailable_sources"]:
            agree = "the sources that answered agree"
        return "\n".join([*lines, f"{counted(answer['address_count'], 'address')} compared: {agree}"])
    columns = {"SEVERITY": "{severity}", "SUBJECT": "{subject}", "WHAT DIFFERS": "{text}", "NEXT": "{next}"}
    findings = table(answer["findings"], columns, layout, is_shortened=False, colour_of=_colour)
    return "\n".join([*lines, findings])


def _colour(finding: Answer) -> Colour | None:
    return {"violation": Colour.BAD, "difference": Colour.NOTICE}.get(finding["severity"])


AUDIT = Verb(
    help="compare datastore, kernel, EC2 and runtime; exit 1 on a violation",
    about="Compares what is recorded with what the kernel, the runtime and EC2 show, and names the next step for each difference. It "
    "changes nothing.",
    examples=("ipamctl audit --skip-ec2",),
    lay_out=render_audit,
    rpc="Audit",
    fields=("skip_ec2",),
    arguments=(argument("--skip-ec2", action="store_true", help="make no EC2 call"),),
    needs_attention=lambda answer: any(finding["severity"] == "violation" for finding in answer["findings"]),
)
