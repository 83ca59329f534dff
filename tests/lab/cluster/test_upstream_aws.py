"""The AWS APIs that stand in for the account of amazon-vpc-cni-k8s's tests: IAM, CloudFormation, and a website outside."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from lab.cluster.upstream_tests import iam, node_groups
from lab.cluster.upstream_tests.iam import CNI_POLICY_ARN, Iam
from lab.cluster.upstream_tests.node_groups import NodeGroups
from lab.cluster.upstream_tests.query_api import Action, QueryApi
from lab.ec2.server import Ec2Server
from lab.httpd import Listener
from lab.vpc.model import ROLE
from lab.vpc.state import Vpc

LOCAL = ("127.0.0.1", 0)
LESS = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["ec2:Assign*"], "Resource": "*"}]}


@pytest.fixture
def vpc() -> Iterator[Vpc]:
    """A VPC with a node, a machine of the tests, and a node that stands ready."""
    with Vpc() as made:
        subnet = made.add_subnet("10.0.0.0/24").subnet_id
        for name, instance_type in (("node", "m5.large"), ("tests", "m5.large"), ("spare", "t3.medium")):
            made.add_instance(name=name, instance_type=instance_type, subnet_id=subnet)
        yield made


@pytest.fixture
def client() -> Iterator[Callable[[str, str], Any]]:
    """Make a client of a service at a URL."""
    made: list[Any] = []

    def make(service: str, url: str) -> Any:
        credentials = {"aws_access_key_id": "lab", "aws_secret_access_key": "lab"}
        once = Config(retries={"total_max_attempts": 1})
        made.append(boto3.client(service, endpoint_url=url, region_name="us-west-2", config=once, **credentials))
        return made[-1]

    yield make
    for one in made:
        one.close()


def served(actions: Mapping[str, Action]) -> QueryApi:
    """Serve actions on a free port."""
    return QueryApi(LOCAL, actions, namespace=iam.NAMESPACE)


def test_ec2_refuses_the_nodes_what_no_policy_of_their_role_allows(vpc: Vpc, client: Callable[[str, str], Any]) -> None:
    """The tests' own calls go on, and so do the nodes' after the policy is back."""
    node, tests = (vpc.instance(name).instance_id for name in ("node", "tests"))
    with Ec2Server(vpc, sockets=[Listener(LOCAL, node), Listener(LOCAL, tests)]) as server:
        of_node, of_tests = (client("ec2", f"http://{host}:{port}") for host, port in server.addresses)
        roles = Iam(vpc, [node])
        with roles, served(roles.actions) as api:
            client_of_iam = client("iam", api.url)
            (role,) = client_of_iam.get_instance_profile(InstanceProfileName=ROLE)["InstanceProfile"]["Roles"]
            named = {"RoleName": role["RoleName"]}
            client_of_iam.detach_role_policy(PolicyArn=CNI_POLICY_ARN, **named)
            arn = client_of_iam.create_policy(PolicyName="less", PolicyDocument=json.dumps(LESS))["Policy"]["Arn"]
            client_of_iam.attach_role_policy(PolicyArn=arn, **named)
            with pytest.raises(ClientError) as caught:
                of_node.describe_subnets()
            assert caught.value.response["Error"]["Code"] == "UnauthorizedOperation"
            of_tests.describe_subnets()
            client_of_iam.attach_role_policy(PolicyArn=CNI_POLICY_ARN, **named)
            of_node.describe_subnets()
            with pytest.raises(ClientError) as caught:
                client_of_iam.delete_policy(PolicyArn=arn)
            assert caught.value.response["Error"]["Code"] == "DeleteConflict"
            client_of_iam.detach_role_policy(PolicyArn=arn, **named)
            client_of_iam.delete_policy(PolicyArn=arn)
        of_node.describe_subnets()


def test_iam_has_no_other_role_and_reads_no_policy_that_denies(vpc: Vpc, client: Callable[[str, str], Any]) -> None:
    """A policy that the lab would apply wrongly is refused."""
    roles = Iam(vpc, [])
    with served(roles.actions) as api:
        client_of_iam = client("iam", api.url)
        with pytest.raises(ClientError) as caught:
            client_of_iam.detach_role_policy(PolicyArn=CNI_POLICY_ARN, RoleName="other")
        assert caught.value.response["Error"]["Code"] == "NoSuchEntity"
        denying = {"Statement": [{"Effect": "Deny", "Action": "*", "Resource": "*"}]}
        with pytest.raises(ClientError) as caught:
            client_of_iam.create_policy(PolicyName="none", PolicyDocument=json.dumps(denying))
        assert caught.value.response["Error"]["Code"] == "MalformedPolicyDocument"


def test_an_instance_shows_the_profile_of_its_role(vpc: Vpc, client: Callable[[str, str], Any]) -> None:
    """By its ARN the tests find the role."""
    with Ec2Server(vpc, sockets=[LOCAL]) as server:
        (reservation,) = client("ec2", server.url).describe_instances(InstanceIds=[vpc.instance("node").instance_id])[
            "Reservations"
        ]
    assert reservation["Instances"][0]["IamInstanceProfile"]["Arn"].endswith(f":instance-profile/{ROLE}")


def test_a_stack_launches_a_spare_node_and_terminates_it(vpc: Vpc, client: Callable[[str, str], Any]) -> None:
    """The status follows the work; a second group of the type is refused, because no other node stands ready."""
    launched: list[tuple[str, Mapping[str, str]]] = []
    terminated: list[str] = []
    may_go_on = threading.Event()

    def launch(name: str, labels: Mapping[str, str]) -> None:
        may_go_on.wait(10)
        launched.append((name, labels))

    groups = NodeGroups(vpc, {"spare": "t3.medium"}, launch=launch, terminate=terminated.append)
    with QueryApi(LOCAL, groups.actions, namespace=node_groups.NAMESPACE) as api:
        client_of_stacks = client("cloudformation", api.url)
        subnet = vpc.instance("spare").subnet_id
        values = {"NodeInstanceType": "t3.medium", "Subnets": subnet, "NodeGroupName": "group"}
        parameters = [{"ParameterKey": key, "ParameterValue": value} for key, value in values.items()]
        client_of_stacks.create_stack(StackName="group", TemplateBody="{}", Parameters=parameters)
        assert status_of(client_of_stacks) == "CREATE_IN_PROGRESS"
        may_go_on.set()
        groups.close()
        assert status_of(client_of_stacks) == "CREATE_COMPLETE"
        (stack,) = client_of_stacks.describe_stacks(StackName="group")["Stacks"]
        assert stack["Outputs"][0]["OutputKey"] == "NodeInstanceRole"
        with pytest.raises(ClientError) as caught:
            client_of_stacks.create_stack(StackName="second", TemplateBody="{}", Parameters=parameters)
        assert caught.value.response["Error"]["Code"] == "ValidationError"
        client_of_stacks.delete_stack(StackName="group")
        groups.close()
        assert status_of(client_of_stacks) == "DELETE_COMPLETE"
    assert (launched, terminated) == ([("spare", {node_groups.MANAGED_LABEL: "group"})], ["spare"])


def test_a_failed_launch_is_the_status_of_the_stack(vpc: Vpc, client: Callable[[str, str], Any]) -> None:
    """The tests see it, and do not wait for ever."""

    def launch(name: str, labels: Mapping[str, str]) -> None:
        raise OSError(f"{name} has no disk for {labels}")

    groups = NodeGroups(vpc, {"spare": "t3.medium"}, launch=launch, terminate=lambda _: None)
    with QueryApi(LOCAL, groups.actions, namespace=node_groups.NAMESPACE) as api:
        client_of_stacks = client("cloudformation", api.url)
        values = {"NodeInstanceType": "t3.medium", "Subnets": vpc.instance("spare").subnet_id, "NodeGroupName": "group"}
        parameters = [{"ParameterKey": key, "ParameterValue": value} for key, value in values.items()]
        client_of_stacks.create_stack(StackName="group", TemplateBody="{}", Parameters=parameters)
        groups.close()
        assert status_of(client_of_stacks) == "CREATE_FAILED"


@pytest.mark.parametrize(
    ("wanted", "labels"),
    [
        ({"NodeGroupName": "ng"}, {"eks.amazonaws.com/nodegroup": "ng"}),
        ({"BootstrapArguments": "--b64 x --kubelet-extra-args '--node-labels=a=b,c=d'"}, {"a": "b", "c": "d"}),
        ({"BootstrapArguments": "--b64 x"}, {}),
    ],
)
def test_labels_of_a_node_group(wanted: Mapping[str, str], labels: Mapping[str, str]) -> None:
    """Those of the kubelet's arguments, or the name of a managed group."""
    assert node_groups.labels_of(wanted) == labels


def test_an_action_that_is_not_there_is_refused() -> None:
    """Nobody takes silence for success."""
    with served({}) as api:
        host, port = api.url.removeprefix("http://").split(":")
        connection = HTTPConnection(host, int(port), timeout=5)
        connection.request("POST", "/", body="Action=ListUsers")
        answer = connection.getresponse()
        assert answer.status == 400
        assert b"<Code>InvalidAction</Code>" in answer.read()
        connection.close()


def status_of(client_of_stacks: Any) -> str:
    """Return the status of the stack `group`."""
    (stack,) = client_of_stacks.describe_stacks(StackName="group")["Stacks"]
    return str(stack["StackStatus"])
