"""Lab nodes. Each node has namespaces, a containerd with runc, and a PID 1 of its own."""
