"""What EC2 gave this node: ENIs, their addresses and prefixes, our calls for them, and what shows that they are still there."""
