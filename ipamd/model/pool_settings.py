"""The settings of the pool, as the planner uses them. `ipamd/settings/` reads them from the environment."""

from __future__ import annotations

import math

from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IPV4, Family
from ipamd.model.record import dataclass

RELEASE_HOLD_S = 3600.0
"""For how many seconds addresses and /28s must be in excess before they are released. Ours (docs/pool.md, Release): longer than the
surplus of a rolling update lasts, and longer than most periodic jobs pause. Of the measured windows an hour has the best balance of
EC2 calls and held addresses (docs/performance.md). amazon-vpc-cni-k8s waits 30 s (pkg/ipamd/ipamd.go, decreaseIPPoolInterval)."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Targets in addresses, ENIs or /28 prefixes; 0 means not defined, as in amazon-vpc-cni-k8s.

    `warm_eni_target`, `warm_ip_target`, `minimum_ip_target`, `warm_prefix_target`: the settings WARM_ENI_TARGET and so on.
    `max_eni`: the most ENIs of each network card, if that is below the instance's limit; 0: no cap.
    `max_pods`: the most addresses of the pool; 0: no cap.
    `prefix_delegation`: whether the pool grows by /28s (ENABLE_PREFIX_DELEGATION).
    `warm_target_auto`: whether `warm_ip_target` follows demand (`ipamd/model/auto_target.py`).
    `release_hold_s`: for how many seconds a surplus must last before it is released.
    `spare_eni_delay_s`: how many seconds after the last ADD an ENI is requested, if only WARM_ENI_TARGET or WARM_PREFIX_TARGET needs
        it; 0: at once.
    `leaves_trunk_place`: whether a place on card 0 is left free for the trunk ENI, which the control plane attaches.
    `is_provisioning_disabled`: whether the pool requests nothing from EC2, even while ADDs wait.
    `keeps_one_free`: whether one address stays free if all targets are 0. Otherwise such a pool has no address before its first pod.
    `family`: the pool's address family. An IPv6 pool needs one /80, and the targets have no effect.
    `meaningless`: the names of settings that are set although they have no effect in an IPv6 pool.
    """

    warm_eni_target: int = 1
    warm_ip_target: int = 0
    minimum_ip_target: int = 0
    warm_prefix_target: int = 0
    max_eni: int = 0
    max_pods: int = 0
    prefix_delegation: bool = False
    warm_target_auto: bool = False
    release_hold_s: float = RELEASE_HOLD_S
    spare_eni_delay_s: float = 0.0
    leaves_trunk_place: bool = False
    is_provisioning_disabled: bool = False
    keeps_one_free: bool = True
    family: Family = IPV4
    meaningless: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("warm_eni_target", "warm_ip_target", "minimum_ip_target", "warm_prefix_target", "max_eni", "max_pods"):
            if getattr(self, name) < 0:
                raise failure(SettingsError, FailureCode.TARGET_NEGATIVE, name=name, value=getattr(self, name))
        if not 0 < self.release_hold_s < math.inf:
            raise failure(SettingsError, FailureCode.RELEASE_HOLD_NOT_POSITIVE, value=self.release_hold_s)
        if not 0 <= self.spare_eni_delay_s < math.inf:
            raise failure(SettingsError, FailureCode.SPARE_DELAY_NEGATIVE, value=self.spare_eni_delay_s)

    @property
    def ip_targets_defined(self) -> bool:
        """Whether WARM_IP_TARGET or MINIMUM_IP_TARGET is set, or the target follows demand. Then the other targets have no effect."""
        return self.warm_ip_target > 0 or self.minimum_ip_target > 0 or self.warm_target_auto
