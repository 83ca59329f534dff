"""Read the container runtime's state over CRI, and change nothing there. A list that is not complete is an error (I11), and events are
only hints (docs/adr/0013)."""
