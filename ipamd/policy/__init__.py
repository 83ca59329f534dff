"""Network policy: the calls between aws-network-policy-agent and us, in both directions. Imported only if a setting turns it on."""
