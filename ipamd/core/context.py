"""What every use case works with, as one value: made once by `ipamd/bootstrap.py`, handed to each service."""

from __future__ import annotations

from ipamd.core.agenda import Agenda
from ipamd.core.deadline import KeyLocks
from ipamd.core.demand import Demand
from ipamd.core.freeze import Freeze
from ipamd.core.health import Health
from ipamd.model.record import dataclass
from ipamd.ports import Clock, Datastore, Failpoint, Wiring, no_failpoint


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """What all services of one daemon share: datastore, kernel wiring, clock, and the objects through which they communicate.

    `locks`: one operation per sandbox. `demand`: wakes ADDs and the pool maintainer. `health`: phase and conditions.
    `freeze`: why the pool makes no ENI and releases nothing. `agenda`: the pauses after what failed.
    """

    datastore: Datastore
    wiring: Wiring
    clock: Clock
    health: Health
    locks: KeyLocks
    demand: Demand
    freeze: Freeze
    agenda: Agenda
    failpoint: Failpoint = no_failpoint


class Service:
    """A use case: each part of the context by its own name."""

    def __init__(self, context: ServiceContext) -> None:
        self._datastore = context.datastore
        self._wiring = context.wiring
        self._clock = context.clock
        self._health = context.health
        self._locks = context.locks
        self._demand = context.demand
        self._agenda = context.agenda
        self._failpoint = context.failpoint
