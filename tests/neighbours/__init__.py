"""Programs of other projects, and stand-ins for them, that put themselves into a node's CNI configuration."""
