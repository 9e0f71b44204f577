"""From a raw delivery to its settlement: decode, look up, admit, validate, run, settle."""
