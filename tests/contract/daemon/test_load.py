"""Many at once, and a full node."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from lab.vpc.family import Family
from tests.families import EACH_FAMILY_HEAVY_IPV6
from tests.patience import PATIENCE_S
from tests.rig import rig

pytestmark = pytest.mark.privileged


@EACH_FAMILY_HEAVY_IPV6
def test_two_hundred_mixed_operations_double_and_leave_nothing(family: Family) -> None:
    """200 concurrent ADDs and DELs from many processes: no address has two owners at one time, nothing is left (I1, I4)."""
    with rig(family=family, instance_type="m5.xlarge", env={"MINIMUM_IP_TARGET": "56"}) as made:
        made.node.write_file("/run/mix.py", (Path(__file__).parent / "mix.py").read_bytes())
        done = made.node.run(["/usr/bin/python3", "/run/mix.py", "20", "10", "7"], timeout_s=240)
        log = json.loads(done.stdout)
        assert len(log) == 200
        failed = [entry for entry in log if entry["status"] != 0]
        assert failed == []
        held: dict[str, str] = {}
        owners: dict[str, str] = {}
        # An address is held from the end of its ADD to the beginning of its DEL.
        moments = sorted((e["ended"] if e["verb"] == "ADD" else e["began"], e["verb"], e) for e in log)
        for _, verb, entry in moments:
            if verb == "ADD":
                assert entry["address"] not in held, f"{entry['address']} of {held[entry['address']]} given to {entry['name']}"
                held[entry["address"]] = entry["name"]
                owners[entry["name"]] = entry["address"]
            else:
                del held[owners[entry["name"]]]
        made.assert_sound(expected=len(held))
        for name in list(held.values()):
            assert made.delete(name).ok
        made.assert_sound(expected=0)


def test_the_28th_sandbox_of_a_27_address_node_is_told_why() -> None:
    """27 fit on 3 x 10; the 28th gets code 11 with cause, counts and next step within its deadline, and leaves nothing (I14)."""
    with rig() as made:
        for number in range(27):
            assert made.add(f"s{number}").ok, f"sandbox {number}"
        began = time.monotonic()
        refused = made.add("one-too-many")
        assert time.monotonic() - began < 60
        assert refused.code == 11
        assert refused.body is not None
        details = refused.body["details"]
        assert "3 of 3 ENIs" in details
        assert "27 assigned" in details
        assert "next:" in details
        made.assert_sound(expected=27)
        targets = list(made.attachments().values())
        assert all(made.lab.ping(source="host-a", targets=targets, timeout_s=PATIENCE_S).values())
        assert made.delete("s3").ok
        made.node.remove_netns("one-too-many")
        assert made.add("after-one-left").ok, "it waits for the address that cools"
        for name in list(made.attachments()):
            assert made.delete(name).ok
        made.assert_sound(expected=0)
