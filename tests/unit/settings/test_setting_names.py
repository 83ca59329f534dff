"""A setting's name says whose it is and its unit: amazon-vpc-cni-k8s's names as they are, ours with a prefix."""

from __future__ import annotations

import re
from dataclasses import Field
from pathlib import Path
from typing import Any

import pytest

from ipamd.settings import Settings
from ipamd.settings.upstream import UPSTREAM, Fate

OF_THE_INCUMBENT = {row.name for row in UPSTREAM if row.fate is Fate.HONOURED}
OF_THE_SDK = {"AWS_EC2_METADATA_SERVICE_ENDPOINT"}
SETTINGS = [item for _, item, _ in Settings().declared()]
OURS = [item for item in SETTINGS if item.metadata["env"] not in OF_THE_INCUMBENT | OF_THE_SDK]

UNITS = {"Seconds": "_SECONDS", "Days": "_DAYS", "Bytes": "_BYTES"}
"""First word of a setting's text -> the end of its name."""


def _name(item: Field[Any]) -> str:
    return str(item.metadata["env"])


def test_names_of_others_are_used_as_they_are() -> None:
    """Each setting of amazon-vpc-cni-k8s that is honoured is a field."""
    assert {_name(item) for item in SETTINGS} >= OF_THE_INCUMBENT


@pytest.mark.parametrize("item", OURS, ids=_name)
def test_ours_have_the_prefix_and_the_unit(item: Field[Any]) -> None:
    """VPC_IPAMD_ and upper case; a number of seconds, days or bytes ends with its unit, a path with what it leads to."""
    name = _name(item)
    assert re.fullmatch(r"VPC_IPAMD(_[A-Z0-9]+)+", name)
    unit = UNITS.get(str(item.metadata["text"]).split(" ", 1)[0], "")
    assert name.endswith(unit)
    assert "DISABLE" not in name
    if isinstance(item.default, Path):
        assert name.endswith(("_FILE", "_DIR")), name
