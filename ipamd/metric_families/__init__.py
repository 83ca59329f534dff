"""Prometheus families by topic, made at each scrape from what services know already. Nothing is asked of EC2, kernel or disk."""
