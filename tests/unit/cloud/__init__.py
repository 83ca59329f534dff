"""What the cloud adapters decide: error classes, retries, budget, limits, the trimmed model. No network."""
