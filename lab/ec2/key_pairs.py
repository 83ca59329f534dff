"""Key pairs of SSH: DescribeKeyPairs, CreateKeyPair and DeleteKeyPair. The lab keeps none, so a created one cannot be found."""

from __future__ import annotations

from collections.abc import Callable

from lab.ec2.query import Params
from lab.ec2.xml import Tree
from lab.vpc.errors import Ec2Error
from lab.vpc.state import Vpc


def _describe(_: Vpc, params: Params) -> Tree:
    names = params.texts("KeyName")
    if names:
        raise Ec2Error("InvalidKeyPair.NotFound", f"The key pair '{names[0]}' does not exist")
    return {"keySet": []}


def _create(vpc: Vpc, params: Params) -> Tree:
    return {"keyName": params.required("KeyName"), "keyPairId": vpc.ids.make("key"), "keyFingerprint": "", "keyMaterial": ""}


def _delete(_: Vpc, params: Params) -> Tree:
    params.required("KeyName")
    return {"return": True}


CALLS: dict[str, Callable[[Vpc, Params], Tree]] = {
    "DescribeKeyPairs": _describe,
    "CreateKeyPair": _create,
    "DeleteKeyPair": _delete,
}
"""By API."""
