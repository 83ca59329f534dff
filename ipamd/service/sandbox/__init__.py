"""What the container runtime asks of us: ADD, DEL, CHECK and GC of one sandbox."""
