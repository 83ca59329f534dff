"""One value with the objects that every use case needs. `ipamd/process/bootstrap.py` makes it once and passes it to each service."""

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
    """The objects that all services of one daemon share.

    `wiring`: wires sandboxes in the kernel.
    `health`: has the phase and the conditions of the daemon.
    `locks`: allow one operation per sandbox at a time.
    `demand`: wakes ADDs and the pool maintainer.
    `freeze`: has the causes that freeze the pool (`ipamd/model/freeze.py`).
    `backoffs`: has the pauses after failures, and the times at which regular work is due.
    `failpoint`: called between two steps that change something outside memory; a test kills or pauses the daemon there.
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
    """Base class of a use case. It has the objects of the context as attributes, except `freeze`, because few services need that."""

    def __init__(self, context: ServiceContext) -> None:
        self._datastore = context.datastore
        self._wiring = context.wiring
        self._clock = context.clock
        self._health = context.health
        self._locks = context.locks
        self._demand = context.demand
        self._backoffs = context.backoffs
        self._failpoint = context.failpoint
