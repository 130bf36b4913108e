"""The one exception a user is meant to read, and how a value fits into its sentence."""

MOST_CHARACTERS = 120


class UsageError(ValueError):
    """A value the user gave cannot be used; the message is one sentence that says what to do."""


def brief(value: object) -> str:
    """A value as a sentence can bear it: whole if it is short, of a long one the beginning.

    >>> brief("cnn")
    "'cnn'"
    >>> brief(10**5000)
    'an integer of more than 4300 digits'
    """
    try:
        said = repr(value)
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"
    except Exception:  # a repr of the user's own, or a number too long for one
        is_long = isinstance(value, int)
        return "an integer of more than 4300 digits" if is_long else f"a {type(value).__name__}"
    if len(said) <= MOST_CHARACTERS:
        return said
    return f"{said[:MOST_CHARACTERS]}... ({len(said):,} characters)"
