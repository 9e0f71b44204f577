"""Subscribers that receive many events at once, as a DataFrame."""
