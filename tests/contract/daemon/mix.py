"""Many plugin processes at once, driven from inside the node: ADDs and DELs of random sandboxes, each as a runtime would.

Run in a node: `python mix.py WORKERS OPERATIONS SEED`. Prints one JSON object: every success and failure, in order.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time

PLUGIN = "/opt/cni/bin/vpc-cni"
CONF = json.dumps({"cniVersion": "1.0.0", "name": "vpc-ipamd", "type": "vpc-cni"}).encode()


def cni(verb: str, name: str) -> tuple[int, str]:
    """Execute the plugin once."""
    env = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": name,
        "CNI_NETNS": f"/run/netns/{name}",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/opt/cni/bin",
    }
    done = subprocess.run([PLUGIN], env=env, input=CONF, capture_output=True, timeout=120, check=False)
    return done.returncode, done.stdout.decode()


def netns(name: str) -> None:
    """Make a namespace."""
    path = f"/run/netns/{name}"
    subprocess.run(["/bin/sh", "-c", f"touch {path} && exec unshare --net={path} true"], check=True)


def worker(number: int, operations: int, seed: int, log: list[dict[str, object]]) -> None:
    """Add and delete sandboxes of one's own; leaves some attached."""
    choose = random.Random(f"{seed}-{number}")
    living: list[str] = []
    for turn in range(operations):
        began = time.time()
        if living and choose.random() < 0.5:
            name = living.pop(choose.randrange(len(living)))
            status, out = cni("DEL", name)
            # As containerd does: whoever looks into it at this moment keeps nobody from it.
            subprocess.run(["umount", "--lazy", f"/run/netns/{name}"], check=True)
            os.unlink(f"/run/netns/{name}")
            log.append({"verb": "DEL", "name": name, "status": status, "out": out, "began": began, "ended": time.time()})
        else:
            name = f"w{number}-{turn}"
            netns(name)
            status, out = cni("ADD", name)
            entry = {"verb": "ADD", "name": name, "status": status, "out": out, "began": began, "ended": time.time()}
            if status == 0:
                living.append(name)
                entry["address"] = json.loads(out)["ips"][0]["address"]
            log.append(entry)


def main() -> int:
    """Run the workers; print the log."""
    workers, operations, seed = (int(text) for text in sys.argv[1:4])
    log: list[dict[str, object]] = []
    threads = [threading.Thread(target=worker, args=(n, operations, seed, log)) for n in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.write(json.dumps(log))
    return 0 if len(log) == workers * operations else 1  # else a worker has told why on stderr


if __name__ == "__main__":
    sys.exit(main())
