"""The tables of a lake: ingest, deduplicate, read, compact, expire."""
