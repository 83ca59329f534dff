"""The targets, each in a module of its name; a module is imported only by the worker that runs it."""

from __future__ import annotations

import importlib

from fuzz.target import Target


def load(name: str) -> Target:
    """Make the target `name`. Raises: ImportError."""
    module = importlib.import_module(f"fuzz.targets.{name}")
    target: Target = module.make()
    return target
