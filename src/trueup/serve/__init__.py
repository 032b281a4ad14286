"""Serving: requests into fixed-shape steps over a paged KV pool, and the answers out again."""
