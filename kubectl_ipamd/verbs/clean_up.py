"""`kubectl ipamd clean-up NODE`: remove what vpc-ipamd left on a node that was moved back to amazon-vpc-cni-k8s.

The daemon of vpc-ipamd is gone from such a node, so `ipamd clean-up` runs in a debug pod, by `kubectl exec`. `kubectl debug` could run
it too, but would not show its exit status, nor its output if the command ends before kubectl attaches to the pod.
"""

from __future__ import annotations

import argparse
import subprocess

from kubectl_ipamd.cluster import ClusterView
from kubectl_ipamd.errors import CommandLineError, NoAnswerError
from kubectl_ipamd.execution import HOST, debug_pod
from kubectl_ipamd.session import Session


def run(session: Session, arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns: the exit status of `ipamd clean-up`. 0: all is gone. 1: pods that vpc-ipamd connected still need a part, which the output
    names. 2: it refused.
    Raises: PluginError.
    """
    image = arguments.image or _image_of_daemons(session.cluster())
    words = ["ipamd", "clean-up", "--host-root", HOST]
    if arguments.dry_run:
        words.append("--dry-run")
    with debug_pod(session.kubectl, node=arguments.node, namespace=session.namespace, image=image) as name:
        command = session.kubectl.command("exec", "-n", session.namespace, name, "--", *words)
        try:
            return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
        except OSError as error:
            raise NoAnswerError(f"{session.kubectl.program} cannot be started: {error.strerror}") from error


def _image_of_daemons(view: ClusterView) -> str:
    """Return the image of the daemons on other nodes. Raises: CommandLineError if they have no image, or more than one."""
    images = {node.pod.image for node in view.nodes.values() if node.pod is not None}
    if len(images) != 1:
        raise CommandLineError(f"{len(images)} images of the daemon are in the cluster: name one with --image")
    return images.pop()
