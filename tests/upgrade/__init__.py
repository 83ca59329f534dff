"""Two versions of the code on one node: each takes over the state that the other wrote."""
