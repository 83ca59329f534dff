"""The defects that the stories plant: each one's target exists, each one is planted by a story, and stories plant no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stories import mutations
from tests.stories.mutations import MUTATIONS, Mutation, Patch, constant

FOLDER = Path(mutations.__file__).parent
FILES = [path for path in sorted(FOLDER.glob("*.py")) if path.name != "mutations.py"]
STORIES = [path for path in FILES if path.name.startswith("test_")]

PATCHED_BY_STORIES = ("Fake", "node.", "hook.time", "'tests.")
"""How the first argument of a story's own `setattr` begins: a fake, a part of its node, time, or a bound of the tests."""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_target_of_a_mutation_exists(mutation: Mutation) -> None:
    """A function of the code that was renamed or removed is replaced by nothing: correct the target in the list."""
    assert mutation.missing() == []


def test_a_mutation_without_its_target_is_not_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A story that asks for it fails by its name, and not with something that the story might expect."""
    mutation = Mutation("renamed", "A function has another name.", (Patch(Path, "no_such_name", constant(None)),))
    with pytest.raises(LookupError, match=r"mutation renamed .* Path\.no_such_name"):
        mutation.apply(monkeypatch)


def test_every_mutation_is_used_by_a_story() -> None:
    """Names are unique, and each is written in a story."""
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names)
    written = {
        node.value
        for path in STORIES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert [name for name in names if name not in written] == []


def _patched(path: Path) -> Iterator[str]:
    """The first two arguments of each call that patches something."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in ("setattr", "delattr", "setitem", "delitem", "object"):
            yield " ".join(map(ast.unparse, node.args[:2]))


def test_stories_plant_no_defects_of_their_own() -> None:
    """What a story patches itself belongs to the test, and is not private."""
    patched = [(path.name, text) for path in FILES for text in _patched(path)]
    assert len(patched) > 5
    assert [where for where in patched if not where[1].startswith(PATCHED_BY_STORIES) or re.search(r"[.'](?=_)", where[1])] == []
