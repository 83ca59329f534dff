"""Real container runtimes: Debian's containerd 1.6, which has no events, and 1.7, which has."""
