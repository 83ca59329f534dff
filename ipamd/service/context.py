"""What every use case works with, as one value: made once by `ipamd/bootstrap.py`, handed to each service."""

from __future__ import annotations

from dataclasses import dataclass

from ipamd.ports import Clock, Datastore, Failpoint, Wiring, no_failpoint
from ipamd.service.demand import Demand
from ipamd.service.health import Health
from ipamd.service.locks import KeyLocks


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """The common ground of one daemon: its rows, the kernel's wiring, its clock, and what its services tell each other.

    `locks`: one sandbox at a time. `demand`: where ADDs and the pool maintainer meet. `health`: what operators are told.
    """

    datastore: Datastore
    wiring: Wiring
    clock: Clock
    health: Health
    locks: KeyLocks
    demand: Demand
    failpoint: Failpoint = no_failpoint
