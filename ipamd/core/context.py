"""The objects that every use case needs, as one value: `ipamd/process/bootstrap.py` makes it once and passes it to each service."""

from __future__ import annotations

from ipamd.core.backoffs import Backoffs
from ipamd.core.demand import Demand
from ipamd.core.freeze import Freeze
from ipamd.core.health import Health
from ipamd.core.key_locks import KeyLocks
from ipamd.model.record import dataclass
from ipamd.ports.datastore import Datastore
from ipamd.ports.kernel import Wiring
from ipamd.ports.process import Clock, Failpoint, no_failpoint


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """The objects that all services of one daemon share: datastore, kernel wiring, clock, and those that connect the services.

    `locks`: one operation per sandbox.
    `demand`: wakes ADDs and the pool maintainer.
    `health`: phase and conditions.
    `freeze`: why the pool creates and releases no ENI.
    `backoffs`: the pauses after failures, and when regular work is due.
    """

    datastore: Datastore
    wiring: Wiring
    clock: Clock
    health: Health
    locks: KeyLocks
    demand: Demand
    freeze: Freeze
    backoffs: Backoffs
    failpoint: Failpoint = no_failpoint


class Service:
    """Base of a use case: it has the parts of the context as attributes, except `freeze`, which few need."""

    def __init__(self, context: ServiceContext) -> None:
        self._datastore = context.datastore
        self._wiring = context.wiring
        self._clock = context.clock
        self._health = context.health
        self._locks = context.locks
        self._demand = context.demand
        self._backoffs = context.backoffs
        self._failpoint = context.failpoint
