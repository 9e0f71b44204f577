"""The delivery runtime: receives messages, runs handlers in slots, and settles their outcomes."""
