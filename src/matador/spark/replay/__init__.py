"""Sends events of a lake again: replay, backfill and redrive."""
