"""Each fault, seen by a real client."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import pytest
from botocore.exceptions import (
    ConnectionClosedError,
    EndpointConnectionError,
    ReadTimeoutError,
)

from lab.ec2 import Ec2Server
from lab.httpd import Listener
from lab.vpc.calls import OK
from lab.vpc.faults import Faults, FaultSpecError
from tests.patience import PATIENCE_S

CUT = (ConnectionClosedError, ConnectionError)


def fault(cloud: Any, api: str, **fields: object) -> None:
    """Put one fault on one API, by way of JSON as vpc-lab does."""
    cloud.vpc.faults.apply(json.loads(json.dumps({"apis": {api: fields}})))


def test_latency_delays_the_answer(cloud: Any) -> None:
    """Latency holds a call back by at least its time, and other APIs not at all."""
    fault(cloud, "DescribeSubnets", latency_s=0.2)
    begun = time.monotonic()
    cloud.ec2.describe_subnets()
    assert time.monotonic() - begun >= 0.2
    assert Faults().decide("DescribeVpcs").latency_s == 0


def test_latency_distributions() -> None:
    """A uniform delay stays in its bounds; a log-normal one has its median; both repeat with the seed."""

    def draws(spec: object) -> list[float]:
        faults = Faults(seed=7)
        faults.apply({"apis": {"*": {"latency_s": spec}}})
        return [faults.decide("DescribeVpcs").latency_s for _ in range(500)]

    uniform = draws({"low": 0.1, "high": 0.3})
    assert all(0.1 <= drawn <= 0.3 for drawn in uniform)
    assert max(uniform) - min(uniform) > 0.15
    assert uniform == draws({"low": 0.1, "high": 0.3})
    normal = sorted(draws({"median": 0.2, "sigma": 0.5}))
    assert 0.17 < normal[250] < 0.23
    assert normal[-1] > 0.4


def test_throttling_by_token_bucket(cloud: Any, refused: Any) -> None:
    """A burst passes, then the bucket is empty, then it fills with time; other APIs are not held back."""
    fault(cloud, "DescribeSubnets", throttle={"rate_per_s": 2, "burst": 3})
    for _ in range(3):
        cloud.ec2.describe_subnets()
    with refused("RequestLimitExceeded", "Request limit exceeded.", status=503):
        cloud.ec2.describe_subnets()
    cloud.ec2.describe_vpcs()
    cloud.advance(1.0)
    cloud.ec2.describe_subnets()
    cloud.ec2.describe_subnets()
    with refused("RequestLimitExceeded", status=503):
        cloud.ec2.describe_subnets()


def test_shared_bucket(cloud: Any, refused: Any) -> None:
    """A bucket on * is one bucket for all APIs together."""
    fault(cloud, "*", throttle={"rate_per_s": 1, "burst": 2})
    cloud.ec2.describe_subnets()
    cloud.ec2.describe_vpcs()
    with refused("RequestLimitExceeded", status=503):
        cloud.ec2.describe_instances()


def test_next_calls_fail(cloud: Any, refused: Any) -> None:
    """An error with a count strikes that many calls, which take no effect."""
    fault(cloud, "CreateNetworkInterface", error={"code": "InternalError", "count": 2})
    for _ in range(2):
        with refused("InternalError", status=500):
            cloud.create()
    assert len(cloud.vpc.enis()) == 1
    cloud.create()


@pytest.mark.parametrize(
    ("code", "status"), [("RequestExpired", 400), ("AuthFailure", 401), ("UnauthorizedOperation", 403), ("Throttling", 400)]
)
def test_a_code_has_its_usual_status(cloud: Any, refused: Any, code: str, status: int) -> None:
    """As the "Error codes" page says; strikes once."""
    fault(cloud, "DescribeVpcs", error={"code": code, "count": 1})
    with refused(code, status=status):
        cloud.ec2.describe_vpcs()
    cloud.ec2.describe_vpcs()


def test_a_share_of_calls_fails() -> None:
    """An error with a rate strikes about that share of calls."""
    faults = Faults(seed=3)
    faults.apply({"apis": {"*": {"error": {"code": "UnauthorizedOperation", "rate": 0.3}}}})
    errors = [faults.decide("DescribeVpcs").error for _ in range(1000)]
    assert 240 < sum(error is not None for error in errors) < 360
    assert {error.status for error in errors if error} == {403}


def test_describe_lags_behind(cloud: Any, refused: Any) -> None:
    """With eventual consistency Describe shows the state of a while ago, whole; changes take effect at once."""
    fault(cloud, "DescribeNetworkInterfaces", lag_s=5)
    cloud.advance(10)
    eni_id = cloud.create()
    with refused("InvalidNetworkInterfaceID.NotFound", eni_id):
        cloud.show(eni_id)
    cloud.advance(4)
    cloud.attach(eni_id)
    cloud.advance(1)
    assert cloud.show(eni_id)["Status"] == "available"
    cloud.advance(4)
    assert cloud.show(eni_id)["Attachment"]["Status"] == "attaching"
    cloud.advance(2)
    assert cloud.show(eni_id)["Attachment"]["Status"] == "attached"


def test_lost_answer(cloud: Any) -> None:
    """A call whose answer is lost has taken effect, and is in the log as unanswered."""
    fault(cloud, "CreateNetworkInterface", lost_answers={"count": 1})
    with pytest.raises(CUT):
        cloud.create(ClientToken="t")
    assert len(cloud.vpc.enis()) == 2
    assert cloud.create(ClientToken="t") == cloud.vpc.enis()[1].eni_id
    assert [(call.outcome, call.answered) for call in cloud.vpc.calls()] == [(OK, False), (OK, True)]


def test_client_retry_after_a_lost_answer(cloud: Any, make_client: Any) -> None:
    """boto3's own retry after a lost answer carries the same token, so one ENI comes of two calls."""
    fault(cloud, "CreateNetworkInterface", lost_answers={"count": 1})
    client = make_client(cloud.server.url, attempts=3)
    client.create_network_interface(SubnetId=cloud.subnet.subnet_id)
    assert cloud.vpc.call_counts()["CreateNetworkInterface"] == 2
    assert len(cloud.vpc.enis()) == 2


def test_answer_comes_too_late(cloud: Any, make_client: Any) -> None:
    """A client that gives up before a slow answer does not know that the call took effect."""
    fault(cloud, "CreateNetworkInterface", answer_latency_s=30)
    client = make_client(cloud.server.url, read_timeout_s=0.3)
    with pytest.raises(ReadTimeoutError):
        client.create_network_interface(SubnetId=cloud.subnet.subnet_id)
    assert _soon(lambda: len(cloud.vpc.enis()) == 2)


def test_hanging_call(cloud: Any, make_client: Any) -> None:
    """A hanging API answers nothing and does nothing, while others go on; cleared, it works again."""
    fault(cloud, "CreateNetworkInterface", hang=True)
    with pytest.raises(ReadTimeoutError):
        make_client(cloud.server.url, read_timeout_s=0.3).create_network_interface(SubnetId=cloud.subnet.subnet_id)
    cloud.ec2.describe_vpcs()
    assert len(cloud.vpc.enis()) == 1
    cloud.vpc.faults.clear()
    cloud.create()


def test_clearing_cuts_those_who_hang(cloud: Any) -> None:
    """Clearing a hang ends the calls that wait, without an answer."""
    fault(cloud, "DescribeVpcs", hang=True)
    failures: list[Exception] = []

    def call() -> None:
        try:
            cloud.ec2.describe_vpcs()
        except CUT as exc:
            failures.append(exc)

    caller = threading.Thread(target=call)
    caller.start()
    assert _soon(lambda: bool(cloud.vpc.calls()))
    cloud.vpc.faults.clear()
    caller.join(PATIENCE_S)
    assert len(failures) == 1


def test_endpoint_refuses(cloud: Any) -> None:
    """While EC2 refuses, connections fail at once, also from a client that was connected; then the same URL works."""
    cloud.ec2.describe_vpcs()
    cloud.vpc.faults.apply({"unreachable": {"ec2": "refuse"}})
    with pytest.raises(EndpointConnectionError):
        cloud.ec2.describe_vpcs()
    cloud.vpc.faults.apply({"unreachable": {"ec2": None}})
    cloud.ec2.describe_vpcs()
    assert cloud.vpc.call_counts() == {"DescribeVpcs": 2}


def test_endpoint_hangs(cloud: Any, make_client: Any) -> None:
    """While EC2 hangs, a call times out and is not even logged; then it works."""
    cloud.vpc.faults.apply({"unreachable": {"ec2": "hang"}})
    client = make_client(cloud.server.url, read_timeout_s=0.3)
    with pytest.raises(ReadTimeoutError):
        client.describe_vpcs()
    cloud.vpc.faults.clear()
    cloud.ec2.describe_vpcs()
    assert cloud.vpc.call_counts() == {"DescribeVpcs": 1}


def test_attachment_that_sticks(cloud: Any) -> None:
    """A stuck attachment stays `attaching` for its time, the next one does not."""
    cloud.vpc.faults.apply({"attach": {"stuck_s": 30, "count": 1}})
    stuck, swift = cloud.create(), cloud.create()
    cloud.attach(stuck, 1)
    cloud.attach(swift, 2)
    cloud.advance(31)
    assert cloud.show(stuck)["Attachment"]["Status"] == "attaching"
    assert cloud.show(swift)["Attachment"]["Status"] == "attached"
    cloud.advance(1)
    assert cloud.show(stuck)["Attachment"]["Status"] == "attached"


def test_attachment_that_vanishes(cloud: Any) -> None:
    """A vanishing attachment is accepted, and then the ENI is available again."""
    cloud.vpc.faults.apply({"attach": {"vanishes": True, "count": 1}})
    eni_id = cloud.create()
    cloud.attach(eni_id)
    assert cloud.show(eni_id)["Status"] == "in-use"
    cloud.advance(2)
    assert cloud.show(eni_id)["Status"] == "available"


def test_a_stuck_attachment_can_be_detached(cloud: Any) -> None:
    """Detaching what is still attaching frees it at once, and the late end of the attachment changes nothing."""
    cloud.vpc.faults.apply({"attach": {"stuck_s": 30}})
    eni_id = cloud.create()
    cloud.ec2.detach_network_interface(AttachmentId=cloud.attach(eni_id))
    assert cloud.show(eni_id)["Status"] == "available"
    cloud.advance(60)
    assert cloud.show(eni_id)["Status"] == "available"


def test_wrong_specs_are_refused_whole() -> None:
    """A wrong spec names all its problems and changes nothing."""
    faults = Faults()
    wrong = {
        "apis": {"*": {"latency": 1, "lag_s": -1, "throttle": {"rate_per_s": "x"}, "error": {"rate": 2}}},
        "unreachable": {"dns": "refuse"},
        "interface_quota": -1,
        "atach": {},
    }
    with pytest.raises(FaultSpecError) as caught:
        faults.apply(wrong)
    for name in ("latency ", "lag_s", "rate_per_s", "error.rate", "unreachable.dns", "interface_quota", "atach"):
        assert name in str(caught.value)
    assert faults.as_dict() == {}


def test_entries_are_replaced_and_cleared() -> None:
    """An entry replaces the one of its name, null clears it, and the rest stays."""
    faults = Faults()
    faults.apply({"apis": {"A": {"lag_s": 1}, "B": {"lag_s": 2}}, "interface_quota": 3})
    faults.apply({"apis": {"A": {"lag_s": 5}, "B": None}})
    assert (faults.lag_s("A"), faults.lag_s("B"), faults.interface_quota) == (5, 0, 3)
    assert json.loads(json.dumps(faults.as_dict()))["interface_quota"] == 3
    faults.clear()
    assert (faults.lag_s("A"), faults.interface_quota, faults.as_dict()) == (0, None, {})


def test_call_log_knows_callers_and_outcomes(cloud: Any, refused: Any, make_client: Any) -> None:
    """Each call is logged with its time, the instance of its socket, parameters and outcome; idle is an empty log."""
    host, port = cloud.server.add_listener(("127.0.0.1", 0))
    make_client(f"http://{host}:{port}").describe_vpcs()
    with refused("InvalidNetworkInterfaceID.NotFound"):
        cloud.ec2.delete_network_interface(NetworkInterfaceId="eni-0")
    untagged, tagged = cloud.vpc.calls()
    assert (untagged.instance, untagged.api, untagged.outcome) == (None, "DescribeVpcs", OK)
    assert tagged.instance == "node-a"
    assert (tagged.at, tagged.outcome) == (cloud.clock(), "InvalidNetworkInterfaceID.NotFound")
    assert tagged.params == {"NetworkInterfaceId": "eni-0"}
    assert cloud.vpc.call_counts(instance="node-a") == {"DeleteNetworkInterface": 1}
    cloud.vpc.clear_calls()
    assert cloud.vpc.calls() == []
    assert cloud.vpc.call_counts().total() == 0


def test_sockets_made_elsewhere(cloud: Any, make_client: Any) -> None:
    """A server takes sockets bound or listening already, tags calls by socket, and lets them refuse."""
    made = [socket.create_server(("127.0.0.1", 0)), socket.socket()]
    made[1].bind(("127.0.0.1", 0))
    ports = [sock.getsockname()[1] for sock in made]
    listeners = [Listener(sock, f"node-{number}") for number, sock in enumerate(made)]
    with Ec2Server(cloud.vpc, sockets=listeners) as server:
        assert [port for _, port in server.addresses] == ports
        clients = [make_client(f"http://127.0.0.1:{port}") for port in ports]
        for client in clients:
            client.describe_vpcs()
        cloud.vpc.faults.apply({"unreachable": {"ec2": "refuse"}})
        with pytest.raises(EndpointConnectionError):
            clients[0].describe_vpcs()
    assert [call.instance for call in cloud.vpc.calls()] == ["node-0", "node-1"]


def test_removed_listener(cloud: Any, make_client: Any) -> None:
    """A listener that is removed refuses, the others serve on."""
    address = cloud.server.add_listener(("127.0.0.1", 0))
    client = make_client(f"http://{address[0]}:{address[1]}")
    cloud.server.remove_listener(address)
    with pytest.raises(EndpointConnectionError):
        client.describe_vpcs()
    cloud.ec2.describe_vpcs()


def _soon(is_so: Any) -> bool:
    """Whether something becomes true, which has time."""
    deadline, waiter = time.monotonic() + PATIENCE_S, threading.Event()
    while not is_so() and time.monotonic() < deadline:
        waiter.wait(0.005)
    return bool(is_so())
