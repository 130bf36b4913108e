"""fl2fast."""
