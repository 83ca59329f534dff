"""The control plane: etcd, API server, controller manager and scheduler. They run on a lab node without pods, because EKS's control
plane is not on a worker either.

Users have static tokens, and the roles that Kubernetes has by default. The certificates are made by openssl for one day. All files are
in the node's /etc.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from lab.cluster import programs
from lab.cluster.api import Api
from lab.cluster.errors import ClusterError
from lab.node.node import Node
from lab.node.process import NodeProcess
from lab.vpc.family import IPV4, IPV6, family_of

PORT = 6443
FOLDER = "/etc/kubernetes"
ETCD = "http://127.0.0.1:2379"
START_TIMEOUT_S = 120.0
ADMIN, PROXY = "admin", "system:kube-proxy"
_MASTERS = "system:masters"


@dataclass(frozen=True)
class ClusterAddresses:
    """The addresses of a cluster of one address family.

    cidr: the block of the services' cluster addresses.
    api_server, dns: the cluster addresses of the API server and of the cluster DNS.
    wildcard: the address on which a server listens for all addresses.
    """

    cidr: str
    api_server: str
    dns: str
    wildcard: str


ADDRESSES = {
    IPV4: ClusterAddresses(cidr="10.100.0.0/16", api_server="10.100.0.1", dns="10.100.0.10", wildcard="0.0.0.0"),
    IPV6: ClusterAddresses(cidr="fd30:1c53:5f8a::/108", api_server="fd30:1c53:5f8a::1", dns="fd30:1c53:5f8a::a", wildcard="::"),
}
"""Family of the cluster -> its addresses, in the blocks that EKS uses. Source: "Learn about IPv6 addresses to clusters, pods, and
services"."""


def kubelet_user(node: str) -> str:
    """Return the user name of a node's kubelet, which Kubernetes' Node authorizer requires."""
    return f"system:node:{node}"


class ControlPlane:
    """The control plane on `node`. It can be started once, and ends with its node."""

    def __init__(self, node: Node, address: str, *, workers: tuple[str, ...]) -> None:
        """Make the object; no program is started yet.

        Args:
            address: the node's address, on which the API server listens. Its family is the cluster's.
            workers: the Kubernetes names of the nodes that may join.
        """
        self.node = node
        self.address = address
        self.addresses = ADDRESSES[family_of(ip_address(address))]
        self._groups = {ADMIN: _MASTERS, PROXY: "", "system:kube-controller-manager": "", "system:kube-scheduler": ""}
        self._groups |= {kubelet_user(worker): "system:nodes" for worker in workers}
        self._tokens = {user: secrets.token_hex(16) for user in self._groups}
        self._processes: list[NodeProcess] = []

    @property
    def api(self) -> Api:
        """A client of the API server, with the administrator's rights."""
        return Api(self.node.netns_path(), self.address, PORT, authority=self.authority, token=self._tokens[ADMIN])

    @property
    def url(self) -> str:
        """The API server's URL, for nodes and pods."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"https://{host}:{PORT}"

    @property
    def authority(self) -> str:
        """The certificate of the authority that signed the API server's certificate, as PEM."""
        return Path(f"{self.node.root}{FOLDER}/ca.crt").read_text(encoding="ascii")

    def kubeconfig(self, user: str) -> str:
        """Return the text of a kubeconfig file for a user."""
        cluster = {"server": self.url, "certificate-authority": f"{FOLDER}/ca.crt"}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "lab", "cluster": cluster}],
                "users": [{"name": user, "user": {"token": self._tokens[user]}}],
                "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
                "current-context": "lab",
            }
        )

    def join(self, worker: Node, name: str) -> None:
        """Write the certificate and the kubeconfig files of kubelet and kube-proxy on a worker. `name`: its name in Kubernetes."""
        worker.write_file(f"{FOLDER}/ca.crt", self.authority.encode())
        worker.write_file(f"{FOLDER}/kubelet.conf", self.kubeconfig(kubelet_user(name)).encode(), 0o600)
        worker.write_file(f"{FOLDER}/kube-proxy.conf", self.kubeconfig(PROXY).encode(), 0o600)

    def start(self) -> float:
        """Start the four programs.

        Returns: the seconds until the API server was ready; the other programs start afterwards. Raises: ClusterError.
        """
        self._write_files()
        options = ["--data-dir=/var/lib/etcd", f"--listen-client-urls={ETCD}", f"--advertise-client-urls={ETCD}"]
        options += ["--listen-peer-urls=http://127.0.0.1:2380", "--unsafe-no-fsync", "--log-level=warn"]
        self._processes = [
            programs.start(self.node, "etcd", options),
            programs.start(self.node, "kube-apiserver", self._server()),
        ]
        api = self.api
        try:
            spent = api.wait(lambda: self._problem(api), what="ready", timeout_s=START_TIMEOUT_S)
        except ClusterError as error:
            raise ClusterError(f"the API server is {error}\n{self.log_tail('kube-apiserver')}") from error
        config = ["--leader-elect=false"]
        manager = [
            f"--kubeconfig={FOLDER}/manager.conf",
            "--use-service-account-credentials=true",
            f"--root-ca-file={FOLDER}/ca.crt",
        ]
        manager += [f"--service-account-private-key-file={FOLDER}/sa.key", "--allocate-node-cidrs=false", *config]
        self._processes.append(programs.start(self.node, "kube-controller-manager", manager))
        scheduler = [f"--kubeconfig={FOLDER}/scheduler.conf", *config]
        self._processes.append(programs.start(self.node, "kube-scheduler", scheduler))
        return spent

    def log_tail(self, name: str, lines: int = 12) -> str:
        """Return the last lines of a program's log."""
        path = Path(self.node.root + programs.log_path(name))
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def _problem(self, api: Api) -> str:
        for process in self._processes:
            if process.poll() is not None:
                raise ClusterError(f"never going to be: {process.args[0]} ended with {process.returncode}")
        return "" if api.is_ready() else "it does not answer yet"

    def _server(self) -> list[str]:
        return [
            f"--etcd-servers={ETCD}",
            f"--advertise-address={self.address}",
            f"--bind-address={self.addresses.wildcard}",
            f"--secure-port={PORT}",
            f"--service-cluster-ip-range={self.addresses.cidr}",
            f"--tls-cert-file={FOLDER}/server.crt",
            f"--tls-private-key-file={FOLDER}/server.key",
            f"--token-auth-file={FOLDER}/tokens.csv",
            f"--service-account-key-file={FOLDER}/sa.pub",
            f"--service-account-signing-key-file={FOLDER}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true",
        ]

    def _write_files(self) -> None:
        tokens = "".join(f'{self._tokens[user]},{user},{user},"{group}"\n' for user, group in self._groups.items())
        self.node.write_file(f"{FOLDER}/tokens.csv", tokens.encode(), 0o600)
        names = f"subjectAltName=IP:{self.address},IP:{self.addresses.api_server},DNS:kubernetes.default.svc"
        self.node.write_file(f"{FOLDER}/server.ext", names.encode())
        # Keys of elliptic curves, because an RSA key may take seconds of a busy core.
        curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        script = f"""
            set -e; cd {FOLDER}
            openssl req -x509 {curve} -keyout ca.key -out ca.crt -subj /CN=lab -days 1
            openssl req {curve} -keyout server.key -out server.csr -subj /CN=kube-apiserver
            openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 1 -extfile server.ext
            openssl ecparam -genkey -name prime256v1 -noout -out sa.key
            openssl ec -in sa.key -pubout -out sa.pub
        """
        self.node.run(["/bin/sh", "-c", script])
        for file, user in (
            ("manager", "system:kube-controller-manager"),
            ("scheduler", "system:kube-scheduler"),
            ("admin", ADMIN),
        ):
            self.node.write_file(f"{FOLDER}/{file}.conf", self.kubeconfig(user).encode(), 0o600)
