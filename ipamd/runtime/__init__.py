"""Read the container runtime over CRI; nothing is changed there. A list that is not complete is an error (I11), and events are only
hints (docs/adr/0013)."""
