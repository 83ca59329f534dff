"""The policy agent's adapter against servers that are slow, refuse, die and come back, and what the agent asks us."""
