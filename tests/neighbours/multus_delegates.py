#!/usr/bin/python3
"""A stand-in for the thin plugin of Multus with several delegates: the first one makes the pod's own interface, the others net1, net2.

Source: github.com/k8snetworkplumbingwg/multus-cni, pkg/multus/multus.go (CmdAdd, CmdDel, delPlugins, getIfname). Every delegate is
called with the sandbox's own ID and namespace and with another CNI_IFNAME. If one fails, it and those before it are deleted, the last
one first. DEL goes backwards, and goes on after an error.
"""

import json
import os
import subprocess
import sys

VERSIONS = ["0.3.1", "0.4.0", "1.0.0"]


def plugins_of(network):
    """The plugins of a delegate, which is one plugin or a list."""
    return network.get("plugins") or [network]


def call(verb, network, plugin, ifname, previous=b""):
    """Run one plugin. Returns: its exit status and output."""
    document = {**plugin, "name": network["name"], "cniVersion": network["cniVersion"]}
    document.pop("capabilities", None)
    if previous:
        document["prevResult"] = json.loads(previous)
    binary = os.path.join(os.environ["CNI_PATH"].split(":")[0], plugin["type"])
    environment = {**os.environ, "CNI_COMMAND": verb, "CNI_IFNAME": ifname}
    done = subprocess.run(
        [binary], input=json.dumps(document).encode(), stdout=subprocess.PIPE, env=environment, check=False, timeout=100
    )
    return done.returncode, done.stdout


def add(network, ifname):
    """ADD of one delegate. Returns: exit status and the last plugin's output."""
    status, output = 0, b""
    for plugin in plugins_of(network):
        status, output = call("ADD", network, plugin, ifname, output)
        if status:
            break
    return status, output


def delete(networks):
    """DEL of delegates, the last one first. Returns: the last exit status that is not 0."""
    failed = 0
    for ifname, network in reversed(networks):
        for plugin in reversed(plugins_of(network)):
            status, _ = call("DEL", network, plugin, ifname)
            failed = status or failed
    return failed


def main():
    """One CNI call."""
    verb, config = os.environ["CNI_COMMAND"], json.load(sys.stdin)
    if verb == "VERSION":
        sys.stdout.write(json.dumps({"cniVersion": "1.0.0", "supportedVersions": VERSIONS}))
        return 0
    names = [os.environ.get("CNI_IFNAME", ""), *(f"net{number}" for number in range(1, len(config["delegates"])))]
    networks = list(zip(names, config["delegates"], strict=True))
    if verb == "DEL":
        delete(networks)  # as Multus: the runtime gets no error, or it would never remove the sandbox
        return 0
    first = b""
    for number, (ifname, network) in enumerate(networks):
        status, output = add(network, ifname)
        if status:
            delete(networks[: number + 1])
            sys.stdout.buffer.write(output)
            return status
        first = first or output
    sys.stdout.buffer.write(first)
    return 0


if __name__ == "__main__":
    sys.exit(main())
