"""The list of what is fuzzed is that of what the code reads."""

from __future__ import annotations

import re
from pathlib import Path

from fuzz import inputs, scale

ROOT = Path(__file__).parents[2]
READERS = {
    str(path.relative_to(ROOT))
    for folder in ("ipamd", "cni_plugin")
    for path in (ROOT / folder).rglob("*.py")
    if not {"pb", "probe"} & set(path.parts) and re.search(inputs.READS, path.read_text())
}


def test_every_module_that_reads_from_outside_is_in_the_list() -> None:
    """A new listener, or a new file that others write, has a target or a reason; what reads nothing any more is taken out."""
    assert {*inputs.TARGETS, *inputs.WITHOUT} == READERS
    assert not inputs.TARGETS.keys() & inputs.WITHOUT.keys()


def test_every_target_is_of_something_in_the_list() -> None:
    """And each that is named exists."""
    assert {target for targets in inputs.TARGETS.values() for target in targets} == set(scale.CASES)
