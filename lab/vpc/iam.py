"""The actions that IAM denies to the instance's role: always, or unless conditions on tags hold.

    {"iam": [{"action": "CreateNetworkInterface", "unless": {"aws:RequestTag/team": "net-*"}}, {"action": "ec2:Detach*"}]}
    {"iam": [{"action": "DescribeSubnets", "instances": ["i-0123456789abcdef0"]}]}

A rule with `instances` concerns only calls of these instances.
A condition is aws:RequestTag/KEY or aws:ResourceTag/KEY (also ec2:ResourceTag/KEY) with a value in which * and ? are wildcards, or
aws:TagKeys with the list of all tag keys that the request may have. If there are several conditions, all must hold. A request that
tags the object that it creates needs the action CreateTags too. Sources: "Control access to EC2 resources using resource tags" and
"Grant permission to tag Amazon EC2 resources during creation" (EC2 user guide). The message of a refusal is from reports such as
openshift/installer 3055 and from "Access denied error message format" (IAM user guide). The functions have no side effects.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from http import HTTPStatus

from lab.vpc.errors import Ec2Error
from lab.vpc.model import OWNER_ID, ROLE
from lab.vpc.spec_reader import Reader

_REQUEST_TAG, _TAG_KEYS = "aws:RequestTag/", "aws:TagKeys"
_RESOURCE_TAGS = ("aws:ResourceTag/", "ec2:ResourceTag/")
_ROLE = f"arn:aws:sts::{OWNER_ID}:assumed-role/{ROLE}"


@dataclass(frozen=True)
class Denial:
    """One rule, which refuses an action unless every condition holds.

    `action`: its name without `ec2:`, with wildcards.
    `tags`: condition key, such as aws:RequestTag/team -> pattern of the value.
    `tag_keys`: the tag keys that a request may have; None for no such condition.
    `instances`: the instances whose calls it concerns; () for all callers.
    """

    action: str
    tags: Mapping[str, str] = field(default_factory=dict)
    tag_keys: tuple[str, ...] | None = None
    instances: tuple[str, ...] = ()

    def refuses(self, request: Request) -> bool:
        """Whether a request is refused by this rule."""
        if not fnmatchcase(request.action, self.action):
            return False
        if not self.tags and self.tag_keys is None:
            return True
        keys_hold = self.tag_keys is None or set(request.request_tags) <= set(self.tag_keys)
        return not (keys_hold and all(_holds(name, pattern, request) for name, pattern in self.tags.items()))


@dataclass(frozen=True)
class Request:
    """One call, with the facts that IAM checks. `resource`: the last part of its ARN. `request_tags`: tags that the call would set.
    `resource_tags`: tags of the resource."""

    action: str
    resource: str = "*"
    request_tags: Mapping[str, str] = field(default_factory=dict)
    resource_tags: Mapping[str, str] = field(default_factory=dict)


def read_denial(reader: Reader) -> Denial:
    """Read one rule."""
    action = reader.text("action").removeprefix("ec2:")
    if not action:
        reader.problem("action", "must name an action, such as CreateNetworkInterface")
    instances = reader.texts("instances")
    denial = reader.nested("unless", lambda inner: _conditioned(action, inner)) or Denial(action)
    return replace(denial, instances=instances)


def refusal(denials: Iterable[Denial], request: Request, *, region: str, session: str) -> Ec2Error | None:
    """Return EC2's refusal of a request; None when it is allowed. `session`: the calling instance, or another name."""
    if not any(denial.refuses(request) for denial in denials if not denial.instances or session in denial.instances):
        return None
    arn = "*" if request.resource == "*" else f"arn:aws:ec2:{region}:{OWNER_ID}:{request.resource}"
    words = (
        f"You are not authorized to perform this operation. User: {_ROLE}/{session} is not authorized to perform: "
        f"ec2:{request.action} on resource: {arn} because no identity-based policy allows the ec2:{request.action} action."
    )
    if not request.action.startswith(("Describe", "Get")):  # a refusal of a list has no encoded message
        encoded = base64.urlsafe_b64encode(f"{request.action} {arn}".encode()).decode()
        words += f" Encoded authorization failure message: {encoded}"
    return Ec2Error("UnauthorizedOperation", words, status=HTTPStatus.FORBIDDEN)


def _conditioned(action: str, reader: Reader) -> Denial:
    tags = {}
    for name in reader.raw:
        if name.startswith((_REQUEST_TAG, *_RESOURCE_TAGS)):
            tags[name] = reader.text(name)
    keys = reader.texts(_TAG_KEYS) if _TAG_KEYS in reader.raw else None
    return Denial(action, tags, keys)


def _holds(name: str, pattern: str, request: Request) -> bool:
    held = request.request_tags if name.startswith(_REQUEST_TAG) else request.resource_tags
    value = held.get(name.partition("/")[2])
    return value is not None and fnmatchcase(value, pattern)
