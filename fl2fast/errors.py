"""The one exception a user is meant to read."""


class UsageError(ValueError):
    """A value the user gave cannot be used; the message is one sentence that says what to do."""
