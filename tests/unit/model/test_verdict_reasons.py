"""One table of the reasons of verdicts: each code has its sentence with all its fields."""

from __future__ import annotations

from string import Formatter

import pytest

from ipamd.model.evidence import Judgement, SandboxVerdict
from ipamd.model.verdict_reasons import SENTENCES, ReasonCode, VerdictReason, verdict_reason


@pytest.mark.parametrize("code", ReasonCode)
def test_each_reason_has_a_sentence_with_all_its_fields(code: ReasonCode) -> None:
    """Text of others that has braces stays as it is."""
    names = {name for _, name, _, _ in Formatter().parse(SENTENCES[code]) if name}
    fields = {name: f"<{name} {{0}}>" for name in names}
    text = str(verdict_reason(code, **fields))
    assert text
    assert all(value in text for value in fields.values())


def test_a_judgement_in_a_line() -> None:
    """All its reasons, and the first, which goes where there is room for one."""
    reasons = verdict_reason(ReasonCode.ABSENT_FROM_LISTS, count=2), VerdictReason(ReasonCode.VETH_GONE)
    judgement = Judgement(SandboxVerdict.REAP, reasons)
    assert judgement.text == "absent from 2 complete lists; its host veth is gone"
    assert judgement.main_reason == "absent from 2 complete lists"
