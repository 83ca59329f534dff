"""The nemesis arms every failpoint that the daemon declares, wherever its module lies, and never none in silence."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lab.chaos.nemesis import KERNEL_FAILPOINTS, failpoint_names
from lab.errors import LabError
from lab.node.node import REPOSITORY


def declared_in(folder: Path) -> set[str]:
    """The names in every `FAILPOINTS = (...)` below a folder, read from the sources without importing them."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            if any(isinstance(target, ast.Name) and target.id == "FAILPOINTS" for target in targets):
                found |= set(ast.literal_eval(node.value))  # type: ignore[union-attr]
    return found


def test_every_declared_failpoint_is_armed() -> None:
    """What importing finds and what the sources say is the same; a new package joins by itself."""
    declared = declared_in(REPOSITORY / "ipamd")
    assert {"attach.wired", "growth.created", "restore.replayed", "datastore.before-commit"} <= declared
    assert failpoint_names() == sorted(declared | set(KERNEL_FAILPOINTS))


def _package(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package of two levels; a module of the lower one declares a failpoint."""
    files = {
        "__init__.py": "",
        "a.py": "",
        "deep/__init__.py": "",
        "deep/er/__init__.py": "",
        "deep/er/b.py": "FAILPOINTS = ('b.x',)",
    }
    _package(tmp_path / "nemesis_probe", files)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "nemesis_probe"]:
        monkeypatch.delitem(sys.modules, name)
    return __import__("nemesis_probe")


def test_sub_packages_are_searched(package: ModuleType) -> None:
    """However deep the module lies."""
    assert set(failpoint_names(package)) == {"b.x", *KERNEL_FAILPOINTS}


def test_a_package_without_failpoints_is_an_error(package: ModuleType) -> None:
    """A run that arms nothing is not a sound run."""
    Path(package.__path__[0], "deep/er/b.py").write_text("")
    with pytest.raises(LabError, match="no module of nemesis_probe declares FAILPOINTS"):
        failpoint_names(package)


def test_a_package_that_cannot_be_imported_is_an_error(package: ModuleType) -> None:
    """pkgutil would pass over it, and its failpoints would never be armed."""
    Path(package.__path__[0], "deep/__init__.py").write_text("import no_such_module")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        failpoint_names(package)
