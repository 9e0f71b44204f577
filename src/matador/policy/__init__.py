"""Pure decisions: facts in, a decision out. No clock, no randomness, no I/O."""
