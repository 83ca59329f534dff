# ruff: noqa: PTH102, PTH103, PTH123, SIM105
# (pathlib and contextlib would double the start time of a process that is started for every node)
"""PID 1 of a lab node: it builds the node's mounts, starts the processes that the lab requests, reaps them, and ends with the lab.

It runs as `python -I -S init.py`, so it imports nothing of the project. The lab starts it as the first process of new network, mount,
PID, UTS and IPC namespaces, and every process of the node is its descendant. When the control socket closes, because the lab closed it
or was killed, this process exits. Then the kernel kills the whole PID namespace and removes the mounts and the network namespace.
Rejected: PR_SET_PDEATHSIG and `unshare --kill-child`, which act when the parent *thread* ends and not the process.

The machine's root stays visible, but /run is a tmpfs, and /etc, /opt and /var are overlays whose upper half is in that tmpfs. So the
default paths of containerd and CNI are the node's own. Control messages (SOCK_SEQPACKET, JSON with file descriptors):

    lab -> init   {"argv", "env", "cwd", "netns"} + fds [stdin, stdout, stderr, notify]
    init -> notify  {"pid": in the node's PID namespace} + pidfd, later {"status": wait status}; or {"error": text}
"""

import ctypes
import json
import os
import select
import signal
import socket
import sys

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE, MS_SHARED = 2, 4, 8, 16384, 1 << 18, 1 << 20  # linux/mount.h
CLONE_NEWCGROUP, CLONE_NEWNET = 0x02000000, 0x40000000  # linux/sched.h
MESSAGE_MAX_BYTES = 1 << 17
OVERLAID = ("etc", "opt", "var")
DIRECTORIES = (
    "/run/containerd",
    "/run/netns",
    "/run/lock",
    "/run/vpc-ipamd",
    "/etc/cni/net.d",
    "/opt/cni/bin",
    "/var/lib/containerd",
)

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Build the node, report that on the control socket, and serve until the socket closes."""
    control_fd, cgroup, hostname = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    control = socket.socket(fileno=control_fd)
    try:
        _enter_cgroup(cgroup)
        _build_mounts()
        socket.sethostname(hostname)
    except OSError as exc:
        control.send(json.dumps({"error": f"node {hostname} cannot be built: {exc}"}).encode())
        return
    control.send(b'{"ready": true}')
    Init(control).serve()


class Init:
    """Starts the processes of the node and reaps them. Concurrency: one thread, so there are no locks.

    Invariant: every started process has exactly one notify socket in `_notify` until its exit status was sent there.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._notify: dict[int, socket.socket] = {}
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> None:
        """Spawn and reap until the lab closes its end of the control socket. A request that cannot be executed raises nothing."""
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake_r, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._wake_r:
                    os.read(self._wake_r, 4096)
                    self._reap()
                elif not self._serve_one():
                    return

    def _serve_one(self) -> bool:
        message, fds, _, _ = socket.recv_fds(self._control, MESSAGE_MAX_BYTES, 8)
        if not message:
            return False
        notify = socket.socket(fileno=fds[3])
        os.set_inheritable(notify.fileno(), False)
        try:
            pid = _start(json.loads(message), fds)
            pidfd = os.pidfd_open(pid)
        except OSError as exc:
            notify.send(json.dumps({"error": str(exc)}).encode())
            notify.close()
            return True
        finally:
            for fd in fds[:3]:
                os.close(fd)
        self._notify[pid] = notify
        try:
            socket.send_fds(notify, [json.dumps({"pid": pid}).encode()], [pidfd])
        except OSError:
            pass  # the caller is gone; the new process must be reaped nevertheless
        os.close(pidfd)
        return True

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            notify = self._notify.pop(pid, None)
            if notify is None:
                continue  # an orphan of the node, such as a child of a containerd shim
            try:
                notify.send(json.dumps({"status": status}).encode())
            except OSError:
                pass
            notify.close()


def _start(request: dict, fds: list[int]) -> int:  # type: ignore[type-arg]
    """Fork and execute a program. Returns: its PID, once the program runs.

    Raises: OSError if the program cannot be executed. The child has ended then, and is reaped like any orphan.
    """
    failure_r, failure_w = os.pipe2(os.O_CLOEXEC)  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        _become(request, fds, failure_w)
    os.close(failure_w)
    with open(failure_r, "rb") as file:
        failure = file.read()
    if failure:
        raise OSError(failure.decode())
    return pid


def _become(request: dict, fds: list[int], failure_w: int) -> None:  # type: ignore[type-arg]
    try:
        signal.set_wakeup_fd(-1)
        for number in (
            signal.SIGCHLD,
            signal.SIGPIPE,
            signal.SIGINT,
            signal.SIGHUP,
        ):  # a lab under `nohup` or `&` ignores the last two
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        for target, fd in enumerate(fds[:3]):
            os.dup2(fd, target)
        failure_w = os.dup2(failure_w, 3, inheritable=False)
        os.closerange(4, 1024)
        if request["netns"]:
            _check(_libc.setns(os.open(request["netns"], os.O_RDONLY | os.O_CLOEXEC), CLONE_NEWNET), request["netns"])
        os.chdir(request["cwd"])
        os.execvpe(request["argv"][0], request["argv"], request["env"])
    except OSError as exc:
        os.write(failure_w, str(exc).encode())
    finally:
        os._exit(127)


def _enter_cgroup(cgroup: str) -> None:
    """Make `cgroup` (cgroup v2) the root of cgroups in this node, and move this process to a leaf, as systemd's PID 1 does."""
    _write(f"{cgroup}/cgroup.procs", "0")
    _check(_libc.unshare(CLONE_NEWCGROUP), "unshare cgroup namespace")
    os.mkdir(f"{cgroup}/init")
    _write(f"{cgroup}/init/cgroup.procs", "0")


def _build_mounts() -> None:
    _mount("none", "/", "", MS_REC | MS_PRIVATE)  # first, so that no mount of the node appears on the machine
    _mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for name in OVERLAID:
        base = f"/run/.lab/{name}"
        os.makedirs(f"{base}/upper")
        os.makedirs(f"{base}/work")
        _mount("overlay", f"/{name}", "overlay", 0, f"lowerdir=/{name},upperdir={base}/upper,workdir={base}/work")
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)  # a sysfs shows the netns it was mounted in
    _mount("cgroup2", "/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for directory in DIRECTORIES:
        os.makedirs(directory, exist_ok=True)
    _mount("tmpfs", "/var/lib/containerd", "tmpfs", 0, "mode=711")  # overlayfs cannot be the upper half of an overlay
    _mount("none", "/", "", MS_REC | MS_SHARED)  # as on a systemd node; shared among this node's descendants only


def _mount(source: str, target: str, fstype: str, flags: int, data: str = "") -> None:
    _check(_libc.mount(source.encode(), target.encode(), fstype.encode(), flags, data.encode()), f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{what}: {os.strerror(errno)}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


if __name__ == "__main__":
    main()
