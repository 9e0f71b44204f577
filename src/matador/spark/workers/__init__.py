"""Runs an application's ordinary subscribers on the cores of a Spark cluster."""
