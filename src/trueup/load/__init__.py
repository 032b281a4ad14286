"""Load: arrivals, the client's side of a server, and what it measured. Knows no engine."""
