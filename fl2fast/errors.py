"""The one exception a user is meant to read, and how a value fits into its sentence."""

MOST_CHARACTERS = 120  # of a value
BEGINNING, END = 600, 300  # characters of a sentence that is too long: it ends with what to do


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


def one_line(message: str) -> str:
    """A message on one line of bearable length, with nothing in it that moves a terminal's cursor.

    >>> one_line("no file\\n'\x1b[31mred'")
    "no file '\\\\x1b[31mred'"
    """
    line = " ".join(message.split())
    if len(line) > BEGINNING + END:
        line = f"{line[:BEGINNING]} ... {line[-END:]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
