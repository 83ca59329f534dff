"""Every listener of ours and every file that others write, by the module that reads it, with the targets that fuzz it.

A test compares this list with the code: a module that begins to read from outside is missing here until it has a target, or a
reason why it needs none. What only root can write counts as others' too: other software on the node is root.
"""

from __future__ import annotations

from collections.abc import Mapping

READS = (
    r"json\.loads|yaml\.\w+\(|\.read_text\(|\.read_bytes\(|read_bounded\(|content_of\(|O_RDONLY|\.open\(\"rb\"\)|\.open\(\) as"
    r"|\.ParseFromString|\.FromString|add_insecure_port|insecure_channel|\bopen_channel\(|socket\.socket\(|\bUnixServer\b|os\.read\(|posix\.read"
    r"|\.recv\w*\(|getsockopt|opener\.open|subprocess\.Popen|NoticeSocket\(|\.readinto\("
)
"""A regular expression: what a module that reads from outside has in its text. Generated code is left out."""

TARGETS: Mapping[str, tuple[str, ...]] = {
    "cni_plugin/_cni.py": ("plugin_input", "plugin_process", "plugin_peer", "plugin_peer_process", "hpack", "json", "envelope"),
    "ipamd/branch/facts.py": ("pod_facts",),
    "ipamd/cloud/bounded_http.py": ("ec2_answers", "metadata_answers"),
    "ipamd/cloud/metadata.py": ("metadata_answers",),
    "ipamd/datastore/spool.py": ("node_files",),
    "ipamd/history.py": ("node_files",),
    "ipamd/host/conflist.py": ("node_files",),
    "ipamd/host/freeze_files.py": ("node_files",),
    "ipamd/host/plugins.py": ("node_files",),
    "ipamd/ipamctl/page.py": ("page_port",),
    "ipamd/ipamctl/verbs/around.py": ("node_files",),
    "ipamd/kernel/host_events.py": ("node_files",),
    "ipamd/kernel/nft.py": ("node_files",),
    "ipamd/metrics_port.py": ("metrics_port",),
    "ipamd/migration/aws_node.py": ("node_files",),
    "ipamd/migration/backend.py": ("backend_requests", "backend_frames"),
    "ipamd/model/aws_node.py": ("node_files",),
    "ipamd/model/branch.py": ("pod_facts",),
    "ipamd/model/cniresult.py": ("node_files", "daemon_requests"),
    "ipamd/model/subnets.py": ("node_files",),
    "ipamd/rpc/cni.py": ("daemon_requests", "pod_facts"),
    "ipamd/rpc/introspection.py": ("daemon_requests",),
    "ipamd/rpc/server.py": ("daemon_requests", "daemon_frames"),
    "ipamd/runtime/cri.py": ("cri_answers",),
    "ipamd/settings/loading.py": ("node_files",),
    "ipamd/settings/parsers.py": ("node_files",),
    "ipamd/settings/settings_file.py": ("node_files",),
}
"""Module -> its targets."""

WITHOUT: Mapping[str, str] = {
    "cni_plugin/build.py": "our own sources, at build time",
    "cni_plugin/spool.py": "a comment",
    "ipamd/adapters.py": "custom networking's file, read by `settings_file.py` and understood by `subnets.py`",
    "ipamd/cloud/child.py": "a process of ours; what EC2 answers it comes through the client (`ec2_answers`)",
    "ipamd/cloud/trim_model.py": "the image's own data",
    "ipamd/daemon.py": "signals through a pipe of the process",
    "ipamd/datastore/open.py": "the boot ID, by the kernel; SQLite itself judges its file (`tests/unit/datastore`)",
    "ipamd/datastore/rows.py": "rows of our own datastore",
    "ipamd/host/files.py": "the kernel's events of files, whose content is not read",
    "ipamd/ipamctl/archive.py": "copied into an archive and not understood",
    "ipamd/grpc_client.py": "opens the channel; who asks reads the answer",
    "ipamd/ipamctl/client.py": "the daemon's answers, through the socket that only root can make",
    "ipamd/ipamctl/main.py": "writes only",
    "ipamd/ipamctl/probing.py": "the kernel's files of links, and a lock",
    "ipamd/kernel/netlink.py": "the kernel's answers: whoever else sends is not heard (`tests/netns/test_netlink_senders.py`)",
    "ipamd/kernel/netns.py": "opened for its namespace, and not read",
    "ipamd/kernel/other_software.py": "the kernel's binary tables; nftables' JSON comes through `nft.py`",
    "ipamd/kernel/routing.py": "numbers of the kernel's sysctls",
    "ipamd/lifecycle.py": "sees that the sockets are there",
    "ipamd/model/intent.py": "rows of our own datastore",
    "ipamd/policy/agent.py": "one flag from a socket that only root can make, of 64 KiB at most (`tests/contract/policy`)",
    "ipamd/ready_marks.py": "compared with one line",
    "ipamd/reload.py": "compared with what was read before; read by `settings_file.py`",
}
"""Module -> why it needs no target."""
