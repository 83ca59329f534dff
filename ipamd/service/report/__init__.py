"""Say what is known and what differs. Reads only."""
