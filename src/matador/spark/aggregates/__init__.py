"""What a lake knows about its messages: volume, health, triage, reconciliation."""
