"""The ENIs that EC2 gave this node, with their addresses and prefixes: our calls for them, and the checks that they still exist."""
