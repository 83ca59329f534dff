"""Expect a refusal of ADD or STATUS by its code and fields; its sentence is in the table of `ipamd/model/refusals.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ipamd.model import pinned_refusals
from ipamd.model.errors import IpamError
from ipamd.model.legs import refusals as leg_refusals
from ipamd.model.legs.refusals import BranchRefusalCode
from ipamd.model.pinned_refusals import PinnedRefusalCode
from ipamd.model.refusals import REFUSALS, RefusalCode


@contextmanager
def refused_with(
    code: RefusalCode | BranchRefusalCode | PinnedRefusalCode, **fields: object
) -> Iterator[pytest.ExceptionInfo[IpamError]]:
    """The block raises the refusal of this code, with at least these fields."""
    table = {**REFUSALS, **leg_refusals.REFUSALS, **pinned_refusals.REFUSALS}
    with pytest.raises(table[code].error) as caught:
        yield caught
    assert caught.value.refusal == code
    assert {name: caught.value.fields.get(name) for name in fields} == {name: str(value) for name, value in fields.items()}
