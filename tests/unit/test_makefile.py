"""`make clean`: it cleans, whatever the lab says, and takes down no lab but the default one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = ROOT / "Makefile"
BY_PRODUCTS = ["build/demo.json", ".mypy_cache/x", "vpc_ipamd.egg-info/x", ".venv/bin/python"]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.mark.parametrize("lab", [None, "exit 0", "echo no >&2; exit 2"], ids=["no lab", "lab", "lab fails"])
def test_clean_removes_what_was_made(tmp_path: Path, lab: str | None) -> None:
    """By-products go and sources stay, with or without a lab and even if taking it down fails."""
    for name in [*BY_PRODUCTS, "ipamd/logs.py"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    asked = tmp_path / "asked"
    if lab is not None:
        script = tmp_path / ".venv/bin/vpc-lab"
        script.write_text(f'#!/bin/sh\necho "$@" >{asked}\n{lab}\n')
        script.chmod(0o755)
    shutil.copy(MAKEFILE, tmp_path)
    done = subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name for name in BY_PRODUCTS if (tmp_path / name).exists()] == []
    assert (tmp_path / "ipamd/logs.py").exists()
    assert not asked.exists() if lab is None else asked.read_text() == "down\n"
