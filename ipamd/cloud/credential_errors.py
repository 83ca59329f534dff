"""Explain why there are no credentials for a call to EC2: the party that did not give them, and what an operator can do. One table.

Several parties are between a node and its keys: a file of the pod, STS, the agent of EKS Pod Identity, instance metadata, the
settings. The message "no credentials" does not show which of them failed, and each failure has another remedy (I14). A call without
credentials was never made, so it changed nothing (I9). `credential_naming.py` finds the party and the code by which a row is chosen.
This module imports nothing of botocore, because the daemon imports it and must not import botocore (docs/adr/0045).
Sources: https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html (codes),
https://docs.aws.amazon.com/eks/latest/userguide/pod-id-how-it-works.html.
"""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase

from ipamd.model.record import dataclass


class Party(StrEnum):
    """The parties that provide credentials, or something that these need."""

    STS = "STS"
    TOKEN_FILE = "the token file"  # noqa: S105  # its name
    CONTAINER = "the Pod Identity agent"
    METADATA = "instance metadata"
    SETTINGS = "the AWS settings"
    CLOCK = "the node's clock"


SILENT, UNREADABLE, FAULT, MISSING, REFUSED, THROTTLED = "silent", "unreadable", "fault", "missing", "refused", "throttled"
"""Our codes for failures for which a party has no code of its own. SILENT: it does not answer. UNREADABLE: something else answers.
FAULT: it reports a fault of its own. MISSING: it has no credentials. REFUSED: it refuses for another reason. THROTTLED: it
throttles."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table: a party, codes of the party or of ours (`*` stands for any text), and advice for an operator."""

    party: Party
    codes: tuple[str, ...]
    advice: str


RULES = (
    Rule(
        Party.STS,
        ("AccessDenied*",),
        "correct the trust policy of role {role}: it must allow sts:AssumeRoleWithWebIdentity to the cluster's OIDC provider for "
        "the service account (sub system:serviceaccount:NAMESPACE:NAME, aud sts.amazonaws.com)",
    ),
    Rule(
        Party.STS,
        ("InvalidIdentityToken*", "IDPRejectedClaim*"),
        "create the IAM OIDC provider of this cluster's issuer, with the audience sts.amazonaws.com, in the account of role {role}; "
        "or the token in {file} is of another cluster",
    ),
    Rule(
        Party.STS,
        ("ExpiredToken*",),
        "check the node's clock (chronyc tracking); if it is right, the token in {file} is not renewed: see kubelet's log, or "
        "restart the pod",
    ),
    Rule(
        Party.STS,
        ("IDPCommunicationError",),
        "STS cannot reach the cluster's OIDC issuer: it must be public; if it is, this passes by itself",
    ),
    Rule(Party.STS, ("RegionDisabled*",), "activate STS for this region in the account's settings, or set AWS_REGION"),
    Rule(Party.STS, (THROTTLED, "Throttl*", "RequestLimitExceeded"), "STS throttles the account: this passes by itself"),
    Rule(Party.STS, (FAULT,), "STS has a fault of its own: see the AWS health dashboard if it lasts"),
    Rule(
        Party.STS,
        (SILENT,),
        "check the node's route, DNS, proxy and security groups to STS at {endpoint}; in a private VPC make an interface endpoint "
        "for it",
    ),
    Rule(
        Party.STS, (UNREADABLE,), "a proxy or another service may answer at {endpoint}: check AWS_ENDPOINT_URL_STS if it is set"
    ),
    Rule(
        Party.STS,
        ("*",),
        "check role {role} and the service account that names it; look the code up in STS's list of errors",
    ),
    Rule(
        Party.TOKEN_FILE,
        ("*",),
        "{file} is a volume of this pod, which EKS's webhook mounts and kubelet fills and renews: restart the pod after the service "
        "account or its Pod Identity association changed; see kubelet's log if the file stays as it is",
    ),
    Rule(
        Party.CONTAINER,
        (SILENT,),
        "see that the DaemonSet eks-pod-identity-agent runs on this node and answers at {endpoint}",
    ),
    Rule(
        Party.CONTAINER,
        (FAULT, THROTTLED),
        "see the log of the DaemonSet eks-pod-identity-agent, and whether the node reaches EKS Auth "
        "(eks-auth:AssumeRoleForPodIdentity)",
    ),
    Rule(Party.CONTAINER, (UNREADABLE,), "something else may answer at {endpoint}: check AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    Rule(
        Party.CONTAINER,
        ("*",),
        "check the service account's Pod Identity association, and that the role trusts pods.eks.amazonaws.com with sts:AssumeRole "
        "and sts:TagSession",
    ),
    Rule(
        Party.METADATA,
        (MISSING,),
        "give the node an instance profile with a role, or the service account a role (eks.amazonaws.com/role-arn, or a Pod Identity "
        "association)",
    ),
    Rule(
        Party.METADATA,
        (SILENT,),
        "let this pod reach instance metadata at {endpoint}, which gives the role of the instance profile: hostNetwork, or a hop "
        "limit of 2 (HttpPutResponseHopLimit)",
    ),
    Rule(
        Party.METADATA,
        ("403", "disabled"),
        "switch instance metadata on (HttpEndpoint=enabled, AWS_EC2_METADATA_DISABLED not set), or give the service account a role",
    ),
    Rule(Party.METADATA, (UNREADABLE,), "something else may answer at {endpoint}: check AWS_EC2_METADATA_SERVICE_ENDPOINT"),
    Rule(
        Party.METADATA,
        (FAULT, THROTTLED),
        "find out what else on this node asks instance metadata so often; reboot the node if it lasts",
    ),
    Rule(
        Party.METADATA,
        ("*",),
        "check that the role of the instance profile exists and trusts ec2.amazonaws.com",
    ),
    Rule(
        Party.SETTINGS,
        ("*",),
        "correct the AWS_* variables of this pod, or take them out: then the service account's or the node's role is used",
    ),
    Rule(Party.CLOCK, ("*",), "set the node's clock right (chronyc tracking): by this clock, new keys have expired already"),
)
"""First match wins."""


@dataclass(frozen=True, slots=True)
class MissingCredentials:
    """Why there are no credentials, as texts that can be passed from one process to another.

    `party`: a value of Party.
    `code`: the party's own code, or one of ours.
    `text`: the party's message.
    `endpoint`, `role`, `file`: the URL that was called, the ARN of the role, the path of the file; "" if not known.
    """

    party: str
    code: str
    text: str
    endpoint: str = ""
    role: str = ""
    file: str = ""

    @property
    def advice(self) -> str:
        """Return what an operator can do."""
        rule = next(
            rule for rule in RULES if rule.party == self.party and any(fnmatchcase(self.code, code) for code in rule.codes)
        )
        return rule.advice.format(
            endpoint=self.endpoint or "its endpoint",
            role=self.role or "of the service account",
            file=self.file or "the service account's file",
        )


SENTENCES = {SILENT: "does not answer", UNREADABLE: "answers something else", FAULT: "has a fault", MISSING: "has none"}


def cause(lack: MissingCredentials) -> str:
    """Name the party that failed, and how it failed."""
    if lack.code in SENTENCES:
        failure = SENTENCES[lack.code]
    elif lack.party == Party.CLOCK:
        failure = "is wrong"
    elif lack.party in (Party.TOKEN_FILE, Party.SETTINGS):
        failure = "cannot be used"
    else:
        failure = "refuses"
    return f"{lack.party} {failure}: {lack.text}"
