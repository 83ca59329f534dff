"""kubelet's pods service against the adapter that asks it."""
