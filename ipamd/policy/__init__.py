"""Network policy: what aws-network-policy-agent and we ask each other. Imported only where a setting asks for it."""
