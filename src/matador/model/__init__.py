"""Pure values: event types, subscribers, schema, envelopes, topology, messages. No I/O."""
