"""The delivery runtime: receives messages, runs any handler in slots, and settles what it says."""
