#!/usr/bin/python3
"""A stand-in for the thin plugin of Multus, written from its documentation: it calls its first delegate, and nothing else.

Source: github.com/k8snetworkplumbingwg/multus-cni, docs/configuration.md. The delegate is a list in `delegates`, or the file at
`clusterNetwork`. ADD goes through the list with each result handed to the next; DEL goes backwards.
"""

import json
import os
import subprocess
import sys


def delegate(config):
    """The list of the first network."""
    path = config.get("clusterNetwork")
    if path:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    return config["delegates"][0]


def call(network, plugin, previous, runtime):
    """Run one plugin of a list. Returns: its exit status and output."""
    document = {key: value for key, value in plugin.items() if key != "capabilities"}
    document.update(name=network["name"], cniVersion=network["cniVersion"])
    asked = {key: runtime[key] for key in plugin.get("capabilities", {}) if key in runtime}
    if asked:
        document["runtimeConfig"] = asked
    if previous:
        document["prevResult"] = json.loads(previous)
    binary = os.path.join(os.environ["CNI_PATH"].split(":")[0], plugin["type"])
    done = subprocess.run([binary], input=json.dumps(document).encode(), stdout=subprocess.PIPE, check=False, timeout=100)
    return done.returncode, done.stdout


def main():
    """One CNI call."""
    command, config = os.environ["CNI_COMMAND"], json.load(sys.stdin)
    if command == "VERSION":
        sys.stdout.write(json.dumps({"cniVersion": "1.0.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0"]}))
        return 0
    network, output = delegate(config), b""
    plugins = network["plugins"] if command != "DEL" else network["plugins"][::-1]
    for plugin in plugins:
        status, output = call(network, plugin, output if command == "ADD" else b"", config.get("runtimeConfig", {}))
        if status:
            sys.stdout.buffer.write(output)
            return status
    if command == "ADD":
        result = json.loads(output)
        result["cniVersion"] = config["cniVersion"]
        sys.stdout.write(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
