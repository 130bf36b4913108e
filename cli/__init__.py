"""The `fl2fast` command: parses, calls the library, prints. No logic of its own."""
