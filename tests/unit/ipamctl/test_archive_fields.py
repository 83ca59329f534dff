"""The fields that a support archive keeps are declared: every key of our log is among them, and codes survive whole."""

from __future__ import annotations

import json
import re

import pytest

from ipamd.ipamctl.archive_fields import KERNEL_FIELDS, LOG_FIELDS
from ipamd.ipamctl.archive_filter import ArchiveFilter
from ipamd.kernel import dump
from ipamd.logs import KEYS
from ipamd.model.conditions import ConditionCode
from ipamd.model.finding_codes import FindingCode
from ipamd.model.legs.codes import LEG_CODES
from ipamd.model.redaction import tells_of_secret
from ipamd.model.refusals import RefusalCode
from tests.unit.test_log_keys import FIELDS, IPAMD, calls


def test_every_key_of_our_log_is_declared() -> None:
    """A new key is declared, or left out of archives on purpose; so is each step of a request."""
    keys, steps = set(FIELDS), set[str]()
    for path in IPAMD.rglob("*.py"):
        if {"pb", "inventory"} & set(path.parts):  # generated code; a program whose log is in no archive
            continue
        source = path.read_text(encoding="utf-8")
        for call in calls(source):
            literal = call.args[1] if getattr(call.func, "attr", "") == "log" else call.args[0]
            keys.update(key for key, _ in KEYS.findall(getattr(literal, "value", "")))
        steps.update(re.findall(r"\.step\(\"([a-z_]+)\"\)", source))
    assert len(keys) > 50
    assert keys | steps <= LOG_FIELDS


def test_the_fields_of_the_kernel_are_declared() -> None:
    """What pyroute2 shows of this machine's links: counters, addresses, states."""
    names = {name for link in dump.links() for name in link if name.islower()}
    assert {"index", "flags", "state"} <= names & KERNEL_FIELDS


@pytest.mark.parametrize("fields", [LOG_FIELDS, KERNEL_FIELDS], ids=["log", "kernel"])
def test_no_declared_field_tells_of_a_secret(fields: frozenset[str]) -> None:
    """Such a field would be left out all the same."""
    assert not [name for name in fields if tells_of_secret(name)]


def test_a_field_that_is_not_declared_is_left_out() -> None:
    """Though all its words are words of our source."""
    kept, counts = ArchiveFilter().keep("log.txt", json.dumps({"eni": "eni-0123456789abcdef0", "attach_reply": "eni"}))
    assert json.loads(kept) == {"eni": "eni-0123456789abcdef0"}
    assert counts.left_out_count == 1


@pytest.mark.parametrize("code", [*ConditionCode, *FindingCode, *RefusalCode, *LEG_CODES])
def test_a_code_is_kept_whole(code: str) -> None:
    """Whatever its words are; another text in its place is judged as any."""
    kept, _ = ArchiveFilter().keep("log.txt", json.dumps({"refusal": code}))
    assert json.loads(kept) == {"refusal": code}
    kept, _ = ArchiveFilter().keep("log.txt", json.dumps({"refusal": "xyzzy-frobnicator"}))
    assert "xyzzy" not in kept
