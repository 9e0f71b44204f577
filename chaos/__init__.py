"""Fault runs: real processes, real signals, and a checker that reads what they logged.

``./chaos/run sqlite`` is the long run, ``./chaos/run sqlite F4`` one scenario,
``./chaos/run sqlite --list`` says which there are. The tests run the same scenarios, smaller.
"""
