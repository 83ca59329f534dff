"""Everything that `ipamctl` and the metrics read, as one value.

Read-only: from a service that changes things it takes a callable or a narrow Protocol, so that a report cannot call a method that
changes something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ipamd.core.demand import Demand
from ipamd.core.health import Health
from ipamd.core.locks import KeyLocks
from ipamd.model.aws_node import GivenTwice
from ipamd.model.cloud import CallUnderWay
from ipamd.model.eni import InstanceLimits
from ipamd.model.freeze import Freezing
from ipamd.model.ids import EniId
from ipamd.model.plan import AutoTarget
from ipamd.model.sandbox import RuntimeInfo, RuntimeView
from ipamd.model.subnets import SubnetView
from ipamd.ports import Datastore, Spool
from ipamd.report.audit import AuditService
from ipamd.report.explain import ExplainService
from ipamd.report.past import PastService
from ipamd.report.what_if import PoolOutlook, WhatIfService
from ipamd.settings import ConfigLine, CurrentSettings


@dataclass(frozen=True, slots=True)
class CloudView:
    """Whether EC2 answered at the last try, calls since start, and one sentence about its answer."""

    reachable: bool
    call_count: int
    detail: str


class PoolLimits(PoolOutlook, Protocol):
    """The pool's targets and limits."""

    @property
    def limits(self) -> InstanceLimits | None:
        """Limits of this instance type; None until they are known."""
        ...

    @property
    def auto(self) -> AutoTarget | None:
        """The target of WARM_TARGET=auto and why; None without it."""
        ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the answers come from. A callable returns what is known now, or None if nothing is known.

    `frozen` tells which ENIs give nothing and why, `freezings` what freezes the pool. `runtime_view` returns None with CRI off;
    `dying_count` counts host veths marked and not yet deleted; `dropped_packets` counts by reason; `is_source_checked` asks the
    kernel, in microseconds. `given_twice`: what amazon-vpc-cni-k8s gave besides, by its file.
    """

    health: Health
    datastore: Datastore
    spool: Spool
    locks: KeyLocks
    demand: Demand
    pool: PoolLimits
    dying_count: Callable[[], int]
    dropped_packets: Callable[[], Mapping[str, int]]
    is_source_checked: Callable[[], bool]
    runtime_view: Callable[[], RuntimeView | None]
    runtime: Callable[[], RuntimeInfo | None]
    cloud: Callable[[], CloudView]
    calls_under_way: Callable[[], tuple[CallUnderWay, ...]]
    audit: AuditService
    frozen: Callable[[], Mapping[EniId, str]]
    freezings: Callable[[], tuple[Freezing, ...]]
    subnets: Callable[[], tuple[SubnetView, ...]]
    explain: ExplainService
    past: PastService
    config: Callable[[], list[ConfigLine]]
    what_if: WhatIfService
    settings: CurrentSettings
    instance_id: Callable[[], str]
    version: str
    given_twice: Callable[[], tuple[GivenTwice, ...]]
