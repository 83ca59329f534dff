"""A page for people: what `ipamctl` shows, in a browser, on a port that is off by default. It reads only (docs/page.md)."""
