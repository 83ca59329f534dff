"""Which sandbox has which address: ADD, DEL, CHECK and GC, and the comparison of the rows with the container runtime."""
