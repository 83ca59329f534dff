"""The table of who did not give credentials: each party and code has its words, and the error its party."""

from __future__ import annotations

import pytest

from ipamd.cloud import errors
from ipamd.cloud.credential_errors import (
    FAULT,
    MISSING,
    REFUSED,
    RULES,
    SILENT,
    THROTTLED,
    UNREADABLE,
    MissingCredentials,
    Party,
    cause,
)
from ipamd.core.backoffs import CREDENTIALS, DENIED, EC2, schedule_of
from ipamd.model.errors import STALE_KEYS, CloudCredentialsError, CloudDeniedError, CloudError, ThrottledError

CODES = (SILENT, UNREADABLE, FAULT, MISSING, REFUSED, THROTTLED, "AccessDenied", "404", "", "{odd}%s")


@pytest.mark.parametrize("party", Party)
@pytest.mark.parametrize("code", CODES)
def test_every_party_and_code_has_words(party: Party, code: str) -> None:
    """Whatever a party says, also what has braces: it is named, and the advice is whole."""
    lack = MissingCredentials(party, code, "{text} of it", endpoint="http://{e}", role="arn:aws:iam::1:role/{r}", file="/{f}")
    error = errors.without_credentials("DescribeSubnets", "subnet-1", lack).error
    assert isinstance(error, CloudCredentialsError)
    assert error.party == party
    assert error.cni_code == 125
    assert str(party) in cause(lack)
    assert "{text} of it" in error.details
    assert len(error.next_step) > 40
    assert not error.may_have_happened


def test_every_rule_is_reached() -> None:
    """None stands behind one that takes all."""
    for rule in RULES:
        code = rule.codes[0].replace("*", "x")
        assert MissingCredentials(rule.party, code, "").advice == rule.advice.format(
            endpoint="its endpoint", role="of the service account", file="the service account's file"
        )


@pytest.mark.parametrize(
    ("error", "schedule"),
    [
        (CloudCredentialsError("none"), CREDENTIALS),
        *((CloudDeniedError("refused", code=code), EC2) for code in sorted(STALE_KEYS)),
        (CloudDeniedError("denied", code="UnauthorizedOperation"), DENIED),
        (CloudError("silent"), EC2),
        (ThrottledError("slow"), EC2),
        (OSError("ours"), EC2),
    ],
)
def test_when_it_is_tried_again(error: Exception, schedule: object) -> None:
    """A denial of IAM waits for a person, keys do not."""
    assert schedule_of(error) is schedule
