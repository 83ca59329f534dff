"""Lab nodes: each its own namespaces, its own containerd and runc, its own PID 1."""
