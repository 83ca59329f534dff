"""The Prometheus metrics: request counters, figures read at each scrape, and the page."""
