"""Every listener of ours and every file that others write, by the module that reads it, with the targets that fuzz it.

A test compares this list with the code: a module that begins to read from outside is missing here until it has a target, or a
reason why it needs none. What only root can write counts as others' too: other software on the node is root.
"""

from __future__ import annotations

from collections.abc import Mapping

READS = (
    r"json\.loads|yaml\.\w+\(|\.read_text\(|\.read_bytes\(|read_bounded\(|content_of\(|O_RDONLY|\.open\(\"rb\"\)|\.open\(\) as"
    r"|\.ParseFromString|\.FromString|add_insecure_port|insecure_channel|\bopen_channel\(|\bPeer\(|socket\.socket\(|\bUnixServer\b|os\.read\(|posix\.read"
    r"|\.recv\w*\(|getsockopt|opener\.open|subprocess\.Popen|NoticeSocket\(|\.readinto\("
)
"""A regular expression: what a module that reads from outside has in its text. Generated code is left out."""

TARGETS: Mapping[str, tuple[str, ...]] = {
    "cni_plugin/_cni.py": ("plugin_input", "plugin_process", "plugin_peer", "plugin_peer_process", "hpack", "json", "envelope"),
    "ipamd/sandbox/legs/pod_facts.py": ("pod_facts",),
    "ipamd/cloud/bounded_http.py": ("ec2_answers", "metadata_answers"),
    "ipamd/cloud/instance_notices.py": ("metadata_answers",),
    "ipamd/cloud/metadata_answers.py": ("metadata_answers",),
    "ipamd/datastore/spool.py": ("node_files",),
    "ipamd/history/encoding.py": ("node_files",),
    "ipamd/host/conflist.py": ("node_files",),
    "ipamd/host/first_conflist.py": ("node_files",),
    "ipamd/host/freeze_files.py": ("node_files",),
    "ipamd/host/plugin_bundle.py": ("node_files",),
    "ipamd/host/plugin_chain.py": ("node_files",),
    "ipamd/host/plugin_versions.py": ("node_files",),
    "ipamd/ipamctl/page.py": ("page_port",),
    "ipamd/ipamctl/page_access.py": ("page_port",),
    "ipamd/ipamctl/chart_values.py": ("node_files",),
    "ipamd/ipamctl/verbs/convert_eniconfig.py": ("node_files",),
    "ipamd/ipamctl/verbs/convert_values.py": ("node_files",),
    "ipamd/ipamctl/yaml_files.py": ("node_files",),
    "ipamd/kernel/host_events.py": ("node_files",),
    "ipamd/kernel/notice_socket.py": ("node_files",),
    "ipamd/kernel/nft.py": ("node_files",),
    "ipamd/http/port.py": ("metrics_port",),
    "ipamd/migration/aws_node.py": ("node_files",),
    "ipamd/migration/listener.py": ("node_files",),
    "ipamd/migration/shared_files.py": ("node_files",),
    "ipamd/migration/legs/extra_state.py": ("node_files",),
    "ipamd/migration/backend.py": ("backend_requests", "backend_frames"),
    "ipamd/model/aws_node.py": ("node_files",),
    "ipamd/model/legs/branch_eni.py": ("pod_facts",),
    "ipamd/model/chain_versions.py": ("node_files",),
    "ipamd/model/conflist_parts.py": ("node_files",),
    "ipamd/model/cniresult.py": ("node_files", "daemon_requests"),
    "ipamd/model/json_form.py": ("node_files",),
    "ipamd/policy/agent.py": ("agent_answers",),
    "ipamd/rpc/envelope.py": ("daemon_requests", "pod_facts"),
    "ipamd/rpc/introspection.py": ("daemon_requests",),
    "ipamd/rpc/server.py": ("daemon_requests", "daemon_frames"),
    "ipamd/rpc/unix_server.py": ("daemon_requests", "daemon_frames"),
    "ipamd/runtime/cri.py": ("cri_answers",),
    "ipamd/runtime/cri_socket.py": ("cri_answers",),
    "ipamd/runtime/plugin_directories.py": ("cri_answers",),
    "ipamd/settings/loading.py": ("node_files",),
    "ipamd/settings/json_parsers.py": ("node_files",),
    "ipamd/settings/network_file.py": ("node_files",),
    "ipamd/settings/settings_file.py": ("node_files",),
}
"""Module -> its targets."""

WITHOUT: Mapping[str, str] = {
    "ipamd/http/health_pages.py": "connects to our own socket and reads nothing",
    "ipamd/kernel/conntrack.py": "the kernel's counters of connection tracking",
    "ipamd/rpc/watch.py": "the answer of our own service, of which no byte is read",
    "cni_plugin/build.py": "our own sources, at build time",
    "cni_plugin/spool.py": "a comment",
    "ipamd/inventory/state_file.py": "what the inventory wrote, each field checked (`tests/unit/inventory`)",
    "ipamd/ipamctl/verbs/network_plan.py": "sent as it is to the daemon, which reads it by `network_file.py`",
    "ipamd/process/clean_up.py": "names of tables, rules and links by the kernel, and whether our files are there",
    "ipamd/cloud/child.py": "a process of ours; what EC2 answers it comes through the client (`ec2_answers`)",
    "ipamd/cloud/ec2_process.py": "requests of the daemon, by the socket that it inherited",
    "ipamd/cloud/direct_metadata.py": "one code of an answer that botocore reads (`tests/contract/cloud/test_credential_failures.py`)",
    "ipamd/cloud/trimmed_model.py": "the image's own data",
    "ipamd/daemon.py": "signals through a pipe of the process",
    "ipamd/datastore/open.py": "the boot ID, by the kernel; SQLite itself judges its file (`tests/unit/datastore`)",
    "ipamd/datastore/rows.py": "rows of our own datastore",
    "ipamd/host/inotify.py": "the kernel's events of files, whose content is not read",
    "ipamd/history/age.py": "numbers, each checked; tests/unit/history/test_clock_jumps.py damages it",
    "ipamd/ipamctl/archive_filter.py": "what is no JSON is text, of which words are kept; test_archive_filter.py plants secrets",
    "ipamd/ipamctl/vocabulary.py": "our own source",
    "ipamd/ipamctl/archive_parts.py": "copied into an archive and not understood",
    "ipamd/overdue_calls.py": "the kernel's list of our own descriptors, and names of sockets that are only compared",
    "ipamd/ipamctl/absence.py": "the kernel's state of the process that has the socket",
    "ipamd/settings/start_record.py": "what the daemon wrote, each field checked; `tests/unit/ipamctl/test_absence.py` damages it",
    "ipamd/process/served_mark.py": "two words that the daemon wrote; `tests/unit/process/test_short_absence.py` damages them",
    "ipamd/grpc_client.py": "opens the channel; who asks reads the answer",
    "ipamd/ipamctl/client.py": "the daemon's answers, through the socket that only root can make",
    "ipamd/ipamctl/main.py": "writes only",
    "ipamd/ipamctl/probing.py": "the kernel's files of links, and a lock",
    "ipamd/kernel/netlink.py": "the kernel's answers: whoever else sends is not heard (`tests/netns/test_netlink_senders.py`)",
    "ipamd/kernel/nft_record.py": "what the daemon wrote; `tests/netns/test_nft_record.py` damages it",
    "ipamd/kernel/netns_absence.py": "the kernel's mounts (`tests/netns/test_netns_absence.py`)",
    "ipamd/kernel/netns.py": "opened for its namespace, and not read",
    "ipamd/kernel/sysctls.py": "numbers of the kernel's sysctls",
    "ipamd/process/lifecycle.py": "sees that the sockets are there",
    "ipamd/settings/upstream_values.py": "a setting's value, which is checked again by its parser",
    "ipamd/model/intent.py": "rows of our own datastore",
    "ipamd/process/first_address.py": "compared with one line",
    "ipamd/process/reload.py": "compared with what was read before; read by `settings_file.py`",
}
"""Module -> why it needs no target."""
