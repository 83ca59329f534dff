"""The part of IAM that the tests call: policies are taken from the nodes' role and attached to it, and the lab's EC2 follows.

EC2 refuses the nodes every action that no attached policy allows. Other callers, such as the tests themselves, are not affected.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from http import HTTPStatus

from lab.cluster.upstream_tests.query_api import Action, Tree
from lab.ec2.query import Params
from lab.ec2.server import OPERATIONS
from lab.vpc.errors import Ec2Error
from lab.vpc.model import OWNER_ID, ROLE
from lab.vpc.state import Vpc

ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL_IAM"
NAMESPACE = "https://iam.amazonaws.com/doc/2010-05-08/"
CNI_POLICY_ARN = "arn:aws:iam::aws:policy/AmazonEKS_CNI_Policy"
CNI_POLICY_ACTIONS = (
    "ec2:AssignPrivateIpAddresses",
    "ec2:AttachNetworkInterface",
    "ec2:CreateNetworkInterface",
    "ec2:CreateTags",
    "ec2:DeleteNetworkInterface",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstances",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSubnets",
    "ec2:DescribeTags",
    "ec2:DetachNetworkInterface",
    "ec2:ModifyNetworkInterfaceAttribute",
    "ec2:UnassignPrivateIpAddresses",
)
"""The actions that AmazonEKS_CNI_Policy allows. Source: "AWS managed policy: AmazonEKS_CNI_Policy", EKS user guide."""


class Iam:
    """The policies of the nodes' role. Concurrency: any thread may call the actions."""

    def __init__(self, vpc: Vpc, instance_ids: Iterable[str]) -> None:
        """Make the object. `instance_ids`: the nodes, which have the role. EC2 refuses nothing yet."""
        self._vpc, self._instance_ids = vpc, sorted(instance_ids)
        self._lock = threading.Lock()
        self._allowed: dict[str, tuple[str, ...]] = {CNI_POLICY_ARN: CNI_POLICY_ACTIONS}
        self._attached = {CNI_POLICY_ARN}

    def __enter__(self) -> Iam:
        self._apply()
        return self

    def __exit__(self, *exc: object) -> None:
        self._vpc.faults.apply({"iam": None})

    @property
    def actions(self) -> Mapping[str, Action]:
        """The actions of the API."""
        return {
            "GetInstanceProfile": self._get_instance_profile,
            "AttachRolePolicy": self._attach,
            "DetachRolePolicy": self._detach,
            "CreatePolicy": self._create,
            "DeletePolicy": self._delete,
        }

    def _get_instance_profile(self, params: Params) -> Tree:
        name = params.required("InstanceProfileName")
        if name != ROLE:
            raise _no_such(f"Instance Profile {name}")
        common = {"Path": "/", "CreateDate": "2026-01-01T00:00:00Z"}
        role = {
            "RoleName": ROLE,
            "RoleId": "AROALAB",
            "Arn": f"arn:aws:iam::{OWNER_ID}:role/{ROLE}",
            "AssumeRolePolicyDocument": "%7B%7D",
            **common,
        }
        profile = {
            "InstanceProfileName": ROLE,
            "InstanceProfileId": "AIPALAB",
            "Arn": f"arn:aws:iam::{OWNER_ID}:instance-profile/{ROLE}",
            "Roles": [role],
            **common,
        }
        return {"InstanceProfile": profile}

    def _attach(self, params: Params) -> Tree:
        arn = self._require_role_and_policy(params)
        with self._lock:
            self._attached.add(arn)
        self._apply()
        return {}

    def _detach(self, params: Params) -> Tree:
        arn = self._require_role_and_policy(params)
        with self._lock:
            if arn not in self._attached:
                raise _no_such(f"Policy {arn}")
            self._attached.discard(arn)
        self._apply()
        return {}

    def _create(self, params: Params) -> Tree:
        name, document = params.required("PolicyName"), json.loads(params.required("PolicyDocument"))
        arn = f"arn:aws:iam::{OWNER_ID}:policy/{name}"
        with self._lock:
            if arn in self._allowed:
                raise Ec2Error("EntityAlreadyExists", f"A policy called {name} already exists.", status=HTTPStatus.CONFLICT)
            self._allowed[arn] = allowed_actions(document)
        return {"Policy": {"PolicyName": name, "PolicyId": "ANPALAB", "Arn": arn, "Path": "/"}}

    def _delete(self, params: Params) -> Tree:
        arn = params.required("PolicyArn")
        with self._lock:
            if arn not in self._allowed:
                raise _no_such(f"Policy {arn}")
            if arn in self._attached:
                raise Ec2Error("DeleteConflict", f"{arn} is attached to a role.", status=HTTPStatus.CONFLICT)
            del self._allowed[arn]
        return {}

    def _require_role_and_policy(self, params: Params) -> str:
        role, arn = params.required("RoleName"), params.required("PolicyArn")
        if role != ROLE:
            raise _no_such(f"The role with name {role}")
        with self._lock:
            if arn not in self._allowed:
                raise _no_such(f"Policy {arn}")
        return arn

    def _apply(self) -> None:
        """Have EC2 refuse the nodes what no attached policy allows."""
        with self._lock:
            patterns = {pattern for arn in self._attached for pattern in self._allowed[arn]}
            denied = [name for name in sorted(OPERATIONS) if not any(fnmatchcase(f"ec2:{name}", pattern) for pattern in patterns)]
            self._vpc.faults.apply({"iam": [{"action": name, "instances": self._instance_ids} for name in denied]})


def allowed_actions(document: Mapping[str, object]) -> tuple[str, ...]:
    """Return the actions, with wildcards, that a policy allows. Resources and conditions are not read, so that it may seem to allow
    more than it does.

    Raises: Ec2Error if the document denies anything, which the lab does not have.
    """
    statements = document.get("Statement")
    allowed: list[str] = []
    for statement in statements if isinstance(statements, list) else [statements]:
        if not isinstance(statement, Mapping) or statement.get("Effect") != "Allow":
            raise Ec2Error("MalformedPolicyDocument", "The lab has statements that allow, and no others.")
        action = statement.get("Action")
        allowed += [action] if isinstance(action, str) else list(action or ())
    return tuple(allowed)


def _no_such(what: str) -> Ec2Error:
    return Ec2Error("NoSuchEntity", f"{what} cannot be found.", status=HTTPStatus.NOT_FOUND)
