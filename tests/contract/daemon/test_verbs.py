"""Every verb, every specification version, through the real plugin, the real socket and the real kernel."""

from __future__ import annotations

import json

import pytest

from ipamd.model.cni_versions import SUPPORTED_VERSIONS
from ipamd.model.difference_messages import INSIDE_IS_LEFT
from lab.node.plugin import onefile
from lab.vpc.family import IPV6
from tests.families import in_both_of_lab, in_ipv4_of_lab
from tests.rig import PLUGIN_PATH, Rig

pytestmark = pytest.mark.privileged

BOTH = in_both_of_lab("served")
IN_IPV4 = in_ipv4_of_lab("served")

TRIES = 40
"""What is damaged is put back within a second, perhaps before it is looked at; after three times the daemon gives way for a while."""


@BOTH
@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
def test_add_check_del_in_every_version(served: Rig, version: str) -> None:
    """The result has the shape of the version asked for, CHECK accepts it, DEL frees it (I4)."""
    name = f"v{version.replace('.', '')}"
    added = served.add(name, version=version)
    assert added.ok, added.body
    body = added.body
    assert body is not None
    assert body["cniVersion"] == version
    assert ("version" in body["ips"][0]) == (version in ("0.3.1", "0.4.0"))
    assert ("mtu" in body["interfaces"][0]) == (version not in ("0.3.1", "0.4.0", "1.0.0"))
    assert body["interfaces"][1]["sandbox"] == f"/run/netns/{name}"
    way = {"dst": "::/0", "gw": "fe80::1"} if served.family is IPV6 else {"dst": "0.0.0.0/0", "gw": "169.254.1.1"}
    assert body["routes"] == [way]
    assert [one["address"] for one in body["ips"]] == [f"{added.any_address}/{added.any_address.max_prefixlen}"]
    assert body["ips"][0].get("version", str(served.family.version)) == str(served.family.version)
    assert served.lab.ping(source="host-a", targets=[added.any_address])[added.any_address]
    checked = served.cni("CHECK", name, version=version, conf={"prevResult": body})
    assert checked.code == (1 if version == "0.3.1" else 0), "CHECK came with 0.4.0"
    assert served.delete(name, version=version, conf={"prevResult": body}).ok
    served.assert_sound(expected=0)


@IN_IPV4
@pytest.mark.parametrize("version", ["0.2.0", "0.3.0", "2.0.0", "", "x" * 100])
def test_versions_we_do_not_speak_are_refused(served: Rig, version: str) -> None:
    """An unsupported cniVersion is code 1 and names those that are supported; nothing is attached."""
    reply = served.add(f"u{len(version)}{version[:1] or 'e'}{version[2:3]}", version=version)
    assert reply.code == 1
    assert reply.body is not None
    assert "1.1.0" in reply.body["details"]
    served.assert_sound(expected=0)


@BOTH
def test_status_and_gc_came_with_1_1_0(served: Rig) -> None:
    """STATUS succeeds while ADD is served; both verbs are refused for older configurations."""
    assert served.cni("STATUS", "", netns="", version="1.1.0").ok
    assert served.cni("STATUS", "", netns="", version="1.0.0").code == 1
    assert served.cni("GC", "", netns="", version="1.0.0").code == 1


@BOTH
def test_gc_without_a_list_is_refused(served: Rig) -> None:
    """An absent list of valid attachments is not an empty one: nothing is freed (I2)."""
    assert served.cni("GC", "", netns="", version="1.1.0").code == 7
    assert served.cni("GC", "", netns="", version="1.1.0", conf={"cni.dev/valid-attachments": []}).ok


@IN_IPV4
def test_version_is_answered_without_the_daemon(served: Rig) -> None:
    """VERSION lists what we speak."""
    reply = served.cni("VERSION", "", netns="")
    assert reply.ok
    assert reply.body is not None
    assert reply.body["supportedVersions"] == list(SUPPORTED_VERSIONS)


@IN_IPV4
def test_the_node_has_the_static_plugin_where_it_is_built(served: Rig) -> None:
    """`make plugin` decides what the lab, and so every test on it, runs; otherwise it is the interpreted one."""
    first = served.node.run(["head", "-c", "4", PLUGIN_PATH]).stdout
    assert first == ("\x7fELF" if onefile() is not None else "#!/u")


@BOTH
def test_a_repeated_add_gives_the_same_answer(served: Rig) -> None:
    """The same request twice: one attachment, one answer, byte for byte (docs/life.md, The life of an ADD)."""
    first = served.add("again")
    assert served.cni("ADD", "again").body == first.body
    assert served.cni("ADD", "again", conf={"extra": 1}).code == 101
    assert served.delete("again").ok
    assert served.cni("DEL", "again").ok, "I3: a repeated DEL succeeds"
    served.node.make_netns("again")
    assert served.cni("ADD", "again").code == 102, "I4: a late ADD is refused"
    served.node.remove_netns("again")
    served.assert_sound(expected=0)


@BOTH
def test_del_needs_neither_namespace_nor_sound_configuration(served: Rig) -> None:
    """A DEL with an empty netns, after the namespace is gone, or with damaged configuration frees the address (I3)."""
    for number, options in enumerate(({"netns": ""}, {}, {"raw_conf": b"{not json"})):
        name = f"del{number}"
        assert served.add(name).ok
        served.node.remove_netns(name)
        assert served.cni("DEL", name, **options).ok  # type: ignore[arg-type]  # a table of options
    served.assert_sound(expected=0)


@BOTH
def test_a_chained_result_is_kept(served: Rig) -> None:
    """As a later plugin of a chain we append to prevResult and do not lose what was there."""
    before = {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "other0", "mac": "02:00:00:00:00:99"}],
        "ips": [{"address": "192.0.2.1/24", "interface": 0}],
    }
    reply = served.add("chained", conf={"prevResult": before})
    assert reply.ok, reply.body
    assert reply.body is not None
    assert reply.body["interfaces"][0]["name"] == "other0"
    assert reply.body["ips"][0] == {"address": "192.0.2.1/24", "interface": 0}
    assert reply.body["ips"][1]["interface"] == 2
    assert served.delete("chained").ok
    served.assert_sound(expected=0)


@IN_IPV4
@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"raw_conf": b"{"}, 6),
        ({"raw_conf": b"[]"}, 7),
        ({"raw_conf": b"\xff\xfe"}, 6),
        ({"raw_conf": b"[" * 100_000}, 6),
        ({"conf": {"prevResult": []}}, 7),
        ({"conf": {"prevResult": {"ips": 3}}}, 7),
        ({"conf": {"name": 3}}, 7),
        ({"netns": "/run/netns/does-not-exist"}, 104),
        ({"netns": "/etc/passwd"}, 104),
        ({"netns": "/proc/1/ns/mnt"}, 104),
        ({"netns": "/proc/1/ns/net"}, 104),
        ({"netns": "/run/netns"}, 104),
        ({"netns": "relative"}, 4),
        ({"ifname": "a/b"}, 4),
        ({"ifname": "x" * 16}, 4),
    ],
    ids=lambda value: json.dumps(value, default=repr)[:40] if isinstance(value, dict) else str(value),
)
def test_bad_requests_get_their_code_and_leave_nothing(served: Rig, options: dict[str, object], code: int) -> None:
    """Every malformed or hostile ADD has a typed error of the specification's or ours, and no effect (I5)."""
    netns = "bad"
    served.node.make_netns(netns)
    reply = served.cni("ADD", netns, **options)  # type: ignore[arg-type]  # a table of options
    served.node.remove_netns(netns)
    assert reply.code == code, reply.body
    served.assert_sound(expected=0)


@IN_IPV4
@pytest.mark.parametrize("container_id", ["../../etc", "a b", "-x", "x" * 300, "é"])
def test_bad_container_ids_are_refused(served: Rig, container_id: str) -> None:
    """An ID that is a path, too long or not ASCII never becomes a key."""
    assert served.cni("ADD", container_id, netns="/run/netns/none").code == 4


@BOTH
def test_an_interface_name_that_is_taken_is_refused_whole(served: Rig) -> None:
    """The sandbox has an eth0 of its own already: ADD fails and leaves it as it was (I5)."""
    served.node.make_netns("taken")
    served.node.run(["ip", "-n", "taken", "link", "add", "eth0", "type", "veth", "peer", "name", "peer0"])
    assert served.cni("ADD", "taken").code == 105
    links = served.node.run(["ip", "-n", "taken", "-br", "link"]).stdout
    assert "peer0" in links
    served.node.remove_netns("taken")
    served.assert_sound(expected=0)


@BOTH
def test_check_finds_what_was_taken_away(served: Rig) -> None:
    """CHECK names every missing part: route, default route, address; the audit what nobody puts back, the inside."""
    added = served.add("checked")
    assert served.cni("CHECK", "checked", conf={"prevResult": added.body}).ok
    for _ in range(TRIES):
        served.node.run(["ip", served.family.option, "route", "del", str(added.any_address), "table", "113213"], check=False)
        served.node.run(["ip", served.family.option, "-n", "checked", "route", "del", "default"], check=False)
        reply = served.cni("CHECK", "checked", conf={"prevResult": added.body})
        details = str((reply.body or {}).get("details"))
        if "table 113213" in details and "default" in details:
            break
    assert reply.code == 103
    assert "table 113213" in details
    assert "default" in details
    assert INSIDE_IS_LEFT in details
    told = served.client(lambda client: client.ask("Audit"))
    assert told is not None
    assert any("the default route" in one["text"] and "delete the pod" in one["next"] for one in told["findings"])
    other = json.loads(json.dumps(added.body).replace(str(added.any_address), "fd00::9" if served.family is IPV6 else "10.9.9.9"))
    assert "does not carry" in (served.cni("CHECK", "checked", conf={"prevResult": other}).body or {})["details"]
    assert served.cni("CHECK", "never-added", netns="/run/netns/checked").code == 3
    assert served.delete("checked").ok
    served.assert_sound(expected=0)
