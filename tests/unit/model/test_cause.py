"""A refusal of EC2 stays a value until a sentence is made, which says as much of it as there is room for."""

from __future__ import annotations

import pytest

from ipamd.model.cause import Cause, CausePart, Ec2Refusal, Form, cause_of_text, first_parts, joined
from ipamd.model.errors import CloudDeniedError, CloudError, DatastoreError, cause_of_error

DENIED = Ec2Refusal("AssignPrivateIpAddresses", "eni-1", "UnauthorizedOperation", "EC2 AssignPrivateIpAddresses failed: no")
SILENT = Ec2Refusal("AttachNetworkInterface", "eni-2", "", "EC2 AttachNetworkInterface was not answered")


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (Form.FULL, "3 ENIs: EC2 AssignPrivateIpAddresses failed: no (soon); EC2 AttachNetworkInterface was not answered"),
        (Form.CALL, "3 ENIs: EC2 AssignPrivateIpAddresses: UnauthorizedOperation; EC2 AttachNetworkInterface was not answered"),
        (Form.CODE, "3 ENIs: UnauthorizedOperation; EC2 AttachNetworkInterface was not answered"),
    ],
)
def test_a_short_form_says_code_and_call(form: Form, text: str) -> None:
    """And what is in our own words; without a code there is nothing shorter than the text."""
    assert Cause((CausePart("3 ENIs", DENIED, " (soon)"), CausePart(refusal=SILENT))).render(form) == text


def test_a_refusal_that_is_shown_elsewhere_is_referred_to() -> None:
    """Once, however many reasons are the same then; the words of EC2 make no other refusal."""
    again = Ec2Refusal(DENIED.operation, DENIED.subject, DENIED.code, "other words")
    cause = joined([Cause((CausePart(refusal=DENIED),)), Cause((CausePart(refusal=SILENT),)), cause_of_text("no room")])
    assert cause.render(known={again, SILENT}) == "see EC2; no room"
    assert cause.refusals == (DENIED, SILENT)


def test_advice_that_two_refusals_share_is_given_once() -> None:
    """And one reference, with the time of the next try if one of the parts has it."""
    other = Ec2Refusal("CreateNetworkInterface", "new", "UnauthorizedOperation", "EC2 CreateNetworkInterface failed: no")
    parts = (CausePart(refusal=DENIED, note="; allow A; decode it"), CausePart(refusal=other, note="; allow B; decode it"))
    assert Cause(parts).render() == f"{DENIED.text}; allow A; decode it; {other.text}; allow B"
    waiting = Cause((CausePart(refusal=DENIED), CausePart(refusal=other, note=" (next try in 5 s)")))
    assert waiting.render(known={DENIED, other}) == "see EC2 (next try in 5 s)"


def test_causes_are_put_together() -> None:
    """Each reason once, the subject before the first and a note after the last; of many the first, and how many more there are."""
    cause = joined([cause_of_text("a"), cause_of_text("b"), cause_of_text("a")])
    assert str(cause.about("x").noted("!")) == "x: a; b!"
    assert str(Cause((CausePart(refusal=SILENT),)).about("x")) == f"x: {SILENT.text}"
    assert first_parts(cause, 2) == cause
    assert str(first_parts(cause, 1)) == "a; and 1 more"


def test_an_error_has_its_cause() -> None:
    """A call of EC2 as a value, with the advice if that is asked for; any other error in words."""
    denied = CloudDeniedError("no", code="Denied", operation="Describe", subject="i-1", answer="Denied: no", next_step="allow it")
    assert cause_of_error(denied).refusals == (Ec2Refusal("Describe", "i-1", "Denied", "any words"),)
    assert str(cause_of_error(denied)) == "no: Denied: no"
    assert str(cause_of_error(denied, is_advised=True)) == "no: Denied: no; allow it"
    for other in (CloudError("no answer"), DatastoreError("disk full")):
        assert (str(cause_of_error(other, is_advised=True)), cause_of_error(other).refusals) == (str(other), ())
