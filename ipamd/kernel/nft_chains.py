"""Read the chains of nftables from its JSON. Pure. Source of the format: libnftables-json(5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ipamd.model.record import dataclass


@dataclass(frozen=True, slots=True)
class Chain:
    """One chain.

    `hook`: name of the hook at which the kernel calls a base chain of type filter; "" for every other chain.
    `policy_drops`: the chain's policy is drop: it drops the packets about which none of its rules decides.
    """

    family: str
    table: str
    name: str
    hook: str = ""
    policy_drops: bool = False

    def __str__(self) -> str:
        return f"{self.family} {self.table} {self.name}"


def read_chains(answer: Iterable[Mapping[str, Any]]) -> list[Chain]:
    """Return the chains in the answer to `list chains`. Other objects, and chains with an unexpected format, are skipped."""
    chains = []
    for listed_object in answer:
        chain = listed_object.get("chain")
        if not isinstance(chain, dict):
            continue
        family, table, name = chain.get("family"), chain.get("table"), chain.get("name")
        if isinstance(family, str) and isinstance(table, str) and isinstance(name, str):
            # Chains of another type translate or reroute packets. No hook is given for them, so that nobody reads their rules: there
            # may be one for each service.
            hook = str(chain.get("hook") or "") if chain.get("type") == "filter" else ""
            chains.append(Chain(family, table, name, hook, chain.get("policy") == "drop"))
    return chains
