"""Everything is an index into one resident uint8 tensor."""
