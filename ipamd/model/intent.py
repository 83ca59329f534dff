"""Intents: EC2 calls that are about to be made, written before the call and closed after it.

A crash in between leaves an open intent, so nothing that EC2 created for us is lost (I9).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network

from ipamd.model.cloud import all_addresses

SETTLED_AT = "settled_at_monotonic_s"
"""Key in the payload of an intent that gave something back: when EC2 had done it and it was stored. The intent stays for as long as
Describe may still show what is gone, so that a restart knows it too."""


class IntentKind(StrEnum):
    """What an intent changes in EC2."""

    CREATE_ENI = "create-eni"
    DELETE_ENI = "delete-eni"
    ASSIGN = "assign"
    UNASSIGN = "unassign"


@dataclass(frozen=True, slots=True)
class Intent:
    """One change about to be made in EC2. `payload` holds strings only; `client_token` makes a repeated call idempotent."""

    intent_id: str
    kind: IntentKind
    opened_at: datetime
    payload: Mapping[str, str]
    client_token: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether its outcome is known and stored; it only reminds of what EC2 may still show."""
        return SETTLED_AT in self.payload


def names_of(addresses: Iterable[IPv4Address], prefixes: Iterable[IPv4Network]) -> dict[str, str]:
    """Make the part of a payload that names what is given back."""
    return {"addresses": ",".join(map(str, addresses)), "prefixes": ",".join(map(str, prefixes))}


def named(intent: Intent) -> tuple[frozenset[IPv4Address], frozenset[IPv4Network]]:
    """Read what an intent gives back: single addresses, and prefixes. Raises: ValueError if it is malformed."""
    addresses = (IPv4Address(text) for text in intent.payload.get("addresses", "").split(",") if text)
    prefixes = (IPv4Network(text) for text in intent.payload.get("prefixes", "").split(",") if text)
    return frozenset(addresses), frozenset(prefixes)


def leaving_addresses(intents: Iterable[Intent]) -> frozenset[IPv4Address]:
    """Addresses that EC2 is being asked to take back, or was: nobody may be given them (I7). One malformed intent hides no other."""
    found: set[IPv4Address] = set()
    for intent in intents:
        if intent.kind is IntentKind.UNASSIGN and not intent.is_settled:
            try:
                found |= all_addresses(*named(intent))
            except ValueError:
                continue  # its recovery reports it
    return frozenset(found)
