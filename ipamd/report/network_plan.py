"""Report what a start with another network file would do to this node. Nothing is changed.

The file is read, judged and compared with the ENIs by the functions that a start uses: `parse_network_file`, `contradictions`, and the
pool's own choice of subnet and exclusion of ENIs (`ipamd/eni/subnets.py`).
"""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.address import AddressState
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.errors import NotServingError, SettingsError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.ids import EniId
from ipamd.model.network_file import NetworkFile
from ipamd.model.record import dataclass, replace
from ipamd.model.release import why_never_released
from ipamd.model.subnets import DEFAULT_ZONE, CustomNetwork, SubnetCheck, ZoneNetwork
from ipamd.report.sources import Sources
from ipamd.settings import contradictions
from ipamd.settings.network_file import parse_network_file


class EniFate(StrEnum):
    """What becomes of an attached ENI if the daemon starts with the other network file."""

    KEPT = "kept"
    """New pods get its addresses."""
    DETACHED = "detached"
    """New pods get none of its addresses. When no pod has an address of it any more, the ENI is detached and deleted."""
    DRAINED = "drained"
    """New pods get none of its addresses, and its free addresses are released. The ENI stays attached."""


@dataclass(frozen=True, slots=True)
class PlannedEni:
    """An attached ENI that is for pods, and what becomes of it if the daemon starts with the other network file.

    `reason`: why new pods would get none of its addresses; "" if they would.
    `reason_now`: why new pods get none of its addresses with the present file; "" if they do.
    `pods`: the names of the pods that have its addresses. They keep these addresses (I2).
    `free_count`: the number of its free addresses.
    """

    eni_id: EniId
    subnet_id: str
    fate: EniFate
    reason: str
    reason_now: str
    pods: tuple[str, ...]
    free_count: int


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """The judgement of one network file. The fields are those of the message `NetworkPlan` in `proto/`, and are explained there.

    For a refused file only the first five fields are set.
    """

    source: str
    custom_networking: bool
    refused_code: str = ""
    refused_reason: str = ""
    zone: str = ""
    in_force: bool = False
    entry: str = ""
    subnet_id: str = ""
    security_group_ids: tuple[str, ...] = ()
    problem: str = ""
    unchecked_reason: str = ""
    free_count: int = -1
    other_entries: tuple[str, ...] = ()
    primary_carries_pods: bool = False
    max_pods: int = 0
    max_pods_now: int = 0
    enis: tuple[PlannedEni, ...] = ()


def plan_network(sources: Sources, content: bytes, *, source: str) -> NetworkPlan:
    """Judge a network file for this node. Makes one EC2 call, unless the file is refused or names no subnet.

    Args:
        content: the content of the file.
        source: the path of the file, for people.
    Raises: NotServingError while the node's zone or limits are not known yet.
    """
    identity, limits = sources.identity(), sources.pool.limits
    if identity is None or limits is None:
        raise failure(NotServingError, FailureCode.POOL_NOT_PLANNED)
    config = sources.settings.now.subnets
    is_on = config.custom_networking
    try:
        network = parse_network_file(content, config, source=source)
        _require_consistent(sources)
    except SettingsError as error:
        return NetworkPlan(
            source,
            is_on,
            refused_code=error.failure,
            refused_reason=error.details or error.message,
            zone=identity.availability_zone,
        )
    entry, zone_network, check = "", None, SubnetCheck()
    primary_carries_pods = True
    other_entries: tuple[str, ...] = ()
    if network.custom is not None:
        entry, zone_network = _entry(network.custom, identity.availability_zone)
        check = sources.network_judge.check_network(network.custom, identity)
        primary_carries_pods = network.custom.primary_carries_pods
        other_entries = tuple(sorted(zone for zone in network.custom.zones if zone != entry))
    max_pods = limits.max_pods_without_primary
    if primary_carries_pods:
        max_pods = limits.max_pods
    settings = sources.settings.now.pool_settings(max_pods=max_pods, supports_prefixes=limits.supports_prefixes)
    judged = NetworkPlan(
        source,
        is_on,
        zone=identity.availability_zone,
        in_force=network == sources.network_file,
        entry=entry,
        other_entries=other_entries,
        primary_carries_pods=primary_carries_pods,
        max_pods=settings.max_pods,
        max_pods_now=sources.pool.settings.max_pods,
        enis=_planned_enis(sources, network),
    )
    return _with_subnet(judged, zone_network, check, identity)


def _require_consistent(sources: Sources) -> None:
    """Check the settings in force in the same way as a start with custom networking. Raises: SettingsError."""
    settings = sources.settings.now
    problems = contradictions(replace(settings, subnets=replace(settings.subnets, custom_networking=True)))
    if problems:
        raise failure(SettingsError, FailureCode.SETTINGS_WRONG, count=len(problems), problems="; ".join(problems))


def _entry(custom: CustomNetwork, zone: str) -> tuple[str, ZoneNetwork | None]:
    """Return name and content of the entry that `CustomNetwork.of_zone` chooses for a zone; "" and None if there is none."""
    zone_network = custom.of_zone(zone)
    if zone_network is None:
        return "", None
    if zone in custom.zones:
        return zone, zone_network
    return DEFAULT_ZONE, zone_network


def _with_subnet(
    plan: NetworkPlan, zone_network: ZoneNetwork | None, check: SubnetCheck, identity: InstanceIdentity
) -> NetworkPlan:
    plan = replace(plan, problem=check.problem, unchecked_reason=check.unchecked_reason, free_count=check.free_count)
    if zone_network is None:
        return plan
    groups = zone_network.security_group_ids or identity.security_group_ids
    return replace(plan, subnet_id=zone_network.subnet_id, security_group_ids=groups)


def _planned_enis(sources: Sources, network: NetworkFile) -> tuple[PlannedEni, ...]:
    pods: dict[EniId, list[str]] = {}
    for attachment in sources.datastore.attachments():
        if attachment.is_of_pool and attachment.eni_id is not None:
            pods.setdefault(attachment.eni_id, []).append(attachment.sandbox_name or str(attachment.key))
    free_counts: dict[EniId, int] = {}
    for row in sources.datastore.addresses():
        if row.state is AddressState.FREE:
            free_counts[row.eni_id] = free_counts.get(row.eni_id, 0) + 1
    planned = []
    for eni in sorted(sources.datastore.enis(), key=lambda eni: (eni.network_card, eni.device_index)):
        if eni.managed:
            reason = sources.network_judge.exclusion_under(eni, network)
            names = tuple(sorted(pods.get(eni.eni_id, ())))
            free_count = free_counts.get(eni.eni_id, 0)
            planned.append(PlannedEni(eni.eni_id, eni.subnet_id, _fate(eni, reason), reason, eni.excluded, names, free_count))
    return tuple(planned)


def _fate(eni: Eni, reason: str) -> EniFate:
    if not reason:
        return EniFate.KEPT
    if why_never_released(is_primary=eni.is_primary, created_by_us=eni.created_by_us):
        return EniFate.DRAINED
    return EniFate.DETACHED
