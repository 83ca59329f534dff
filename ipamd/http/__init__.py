"""The HTTP ports of the daemon, with bounds against hostile peers."""
