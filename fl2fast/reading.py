"""Small files that anybody may have written, read no further than a stated limit."""

import errno
import os
from pathlib import Path


def read_small(path: Path, most: int) -> str:
    """The UTF-8 text of a regular file of at most `most` bytes; anything else is an OSError.

    A pipe or a device, which might never end, is not even opened.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, "it is not a regular file")
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except ValueError as error:  # a null byte, which no path has
        raise OSError(errno.EINVAL, str(error)) from error
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, f"byte {error.start} is not UTF-8") from error
