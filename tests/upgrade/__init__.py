"""Two versions of the code on one node: what one wrote, the other takes over."""
