"""Which alerts each recording must raise, and no other; a steady state is repeated until three hours are over."""

from __future__ import annotations

EXTENDED_S = 3 * 3600
"""Longer than every `for:` with its window: two hours of differing metadata are the longest."""

NO_ADDRESS = "AddsFail AddsRefused"

EXPECTED: dict[str, str] = {
    "idle": "",
    "packed": "",
    "packed-to-max-pods": "",
    "churn": "",
    "burst": "",
    "rolls": "",
    "throttled-for-a-minute": "",
    "refused-once": "",
    "too-many-addresses": "",
    "target-changed": "",
    "repaired": "",
    "more-than-max-pods": NO_ADDRESS,
    "more-than-the-node": NO_ADDRESS,
    "subnet-full": f"{NO_ADDRESS} PoolEmpty SubnetsFull ConditionPersists",
    "throttled": f"{NO_ADDRESS} PoolEmpty AddsSlow EC2Throttled ConditionPersists",
    "denied": f"{NO_ADDRESS} PoolEmpty PoolBlocked EC2Denied ConditionPersists",
    "denied-at-start": "NotReady EC2Denied ConditionPersists",
    "denied-groups": "EC2Denied ConditionPersists",
    "ec2-silent": f"{NO_ADDRESS} PoolEmpty PoolBlocked AddsSlow ConditionPersists",
    "ec2-slow": "",
    "wrong-setting": "Down",
    "crash-loop": "Restarts",
    "stopped": "Down",
    "settings-wrong": "SettingsRefused ConditionPersists",
    "disk-full": f"{NO_ADDRESS} PoolEmpty PoolBlocked AddsSlow ConditionPersists",
    "runtime-gone": "RuntimeUnreachable ConditionPersists",
    "frozen": "PoolFrozen",
    "flooded": "MetricsPortFlooded",
    "quarantined": "AddressesQuarantined ConditionPersists",
    "fight": "RepairConflict ConditionPersists",
    "conflist-refused": "PluginsMissing ConditionPersists",
    "plugin-gone": "PluginsMissing ConditionPersists",
    "eni-detached": "AddressesLost PodsCutOff ConditionPersists",
    "metadata-differs": "MetadataDiffers ConditionPersists",
    "given-twice": "AwsNodeConflict",
    "idle-ipv6": "",
    "packed-prefixes": "",
    "jobs": "",
    "killed-once": "",
    "slow-growth": "",
    "busy": "AddsSlow",
    "runtime-restarts": "ConditionPersists",
    "throttled-by-others": NO_ADDRESS,
    "throttled-at-rest": "",
    "denied-assign": f"{NO_ADDRESS} PoolEmpty PoolBlocked EC2Denied ConditionPersists",
    "quota": f"{NO_ADDRESS} PoolEmpty PoolBlocked ConditionPersists",
    "subnet-nearly-full": "SubnetsFull ConditionPersists",
    "fight-for-a-rule": "RepairConflict PodsCutOff ConditionPersists",
    "slow-crash-loop": "Restarts",
    "eni-deleted": "AddressesLost PodsCutOff ConditionPersists",
    "throttled-for-five-minutes": NO_ADDRESS,
    "throttled-for-long": f"{NO_ADDRESS} PoolEmpty AddsSlow EC2Throttled ConditionPersists",
    "extra-sources": "SourceCheckOff",
    "confinement-taken": "SourceCheckOff ConditionPersists",
    "spool-stays": "DeletesSpooled ConditionPersists",
    "operation-stuck": "OperationStuck",
    "egress-nearly-used-up": "EgressNearlyUsedUp",
    "two-links-with-one-address": "Defect ConditionPersists",
    "packed-without-spare": "",
    "all-replaced": "",
    "other-conflist": "PluginsMissing ConditionPersists",
    "default-route-gone": "PodsCutOff ConditionPersists",
    "address-unassigned": "AddressesLost PodsCutOff ConditionPersists",
    "ec2-fails": f"{NO_ADDRESS} PoolEmpty PoolBlocked AddsSlow ConditionPersists",
    "metadata-silent": "MetadataDiffers",
    "short-lives": "Down Restarts",
    "eni-detached-while-away": "PodsCutOff ConditionPersists",
    "undone-each-25-minutes": "RepairConflict",
    "ends-each-15-minutes": "Restarts",
    "branch-idle": "",
    "branch-churn": "",
    "branch-churn-by-kubelet": "",
    "branch-controller-slow": "",
    "branch-controller-away": "",
    "branch-controller-gone": "BranchEnisPending",
    "branch-controller-gone-by-kubelet": "BranchEnisPending",
    "branch-never-made": "BranchEnisPending",
    "branch-never-made-beside-many": "BranchEnisPending",
    "branch-named-wrongly": "AddsFail",
    "trunk-missing": "BranchEnisPending ConditionPersists",
    "pods-service-gone": "AddsFail ConditionPersists",
}
"""Recording -> alerts, without their common beginning. From idle-ipv6 on they were recorded when the rules stood."""


ON_MADE_FLEETS = frozenset(
    {
        "VpcIpamdSubnetRunsOut",
        "VpcIpamdSubnetFragmented",
        "VpcIpamdAddressClaimedTwice",
        "VpcIpamdEnisLeaked",
        "VpcIpamdInventoryStale",
    }
)
"""Alerts that no recording of one node raises in the lab: they are tried on made series (tests/heavy/test_fleet_alerts.py)."""


def alerts(name: str) -> frozenset[str]:
    """The alerts of a recording, by their names in the rules."""
    return frozenset(f"VpcIpamd{one}" for one in EXPECTED[name].split())
