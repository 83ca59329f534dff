"""The interface of comparisons with EC2 that concern one kind of leg, and not the ENIs and addresses of the pool."""

from __future__ import annotations

from typing import Protocol


class LegComparison(Protocol):
    """Asks EC2 about the legs of one kind, and stores the outcome in the rows of their sandboxes. Used only by the pool's thread."""

    def compare(self) -> None:
        """Ask EC2 about the sandboxes that are due, and report contradictions. Never raises for an error of EC2 or the disk."""

    def next_s(self) -> float | None:
        """Seconds until something is due by the clock; None if nothing is."""
