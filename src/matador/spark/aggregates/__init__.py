"""Aggregates of the messages of a lake: volume, health, triage, reconciliation."""
