"""Where the legs of sandboxes come from, and how sandboxes are recorded again by the legs that the kernel shows."""
