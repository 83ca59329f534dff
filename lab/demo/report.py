"""The demo's result: a table for people, `build/demo.json` for programs, an exit code for `make`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lab.demo.checks import Check

DETAIL_COLUMNS = 76  # ours, because: with the longest name the table fits 140 columns; nothing is cut off, long details wrap


def is_ok(checks: Sequence[Check]) -> bool:
    """Whether the demo succeeded: something was checked and nothing failed."""
    return bool(checks) and all(check.ok for check in checks)


def exit_code(checks: Sequence[Check]) -> int:
    """0 if the demo succeeded, else 1."""
    return 0 if is_ok(checks) else 1


def summary(checks: Sequence[Check], *, duration_s: float, json_path: Path) -> str:
    """Lay out every check in the order made, then the count, the total time, and where the JSON is."""
    header = Check("CHECK", True, "DETAIL")
    width = max(len(check.name) for check in (header, *checks))
    lines = [_row(header, width, mark="OK"), *(_row(check, width, mark="ok" if check.ok else "FAIL") for check in checks)]
    failed = [check for check in checks if not check.ok]
    count = f"{len(checks) - len(failed)} of {len(checks)} checks hold" if checks else "nothing was checked"
    lines += ["", f"{count}, in {duration_s:.1f} s.{' It failed.' if not is_ok(checks) else ''} The same as JSON: {json_path}"]
    return "\n".join(lines)


def write_json(path: Path, checks: Sequence[Check], *, duration_s: float) -> None:
    """Write `{"ok", "duration_s", "checks": [{"name", "ok", "detail"}]}`: a reader sees all of it or nothing."""
    document = {"ok": is_ok(checks), "duration_s": round(duration_s, 1), "checks": [asdict(check) for check in checks]}
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    scratch.replace(path)


def _row(check: Check, width: int, *, mark: str) -> str:
    first, *rest = textwrap.wrap(check.detail, DETAIL_COLUMNS) or [""]
    indent = " " * (width + 8)
    return "\n".join([f"{check.name.ljust(width)}  {mark:<4}  {first}".rstrip(), *(indent + line for line in rest)])
