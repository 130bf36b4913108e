"""Damage: values that no command expects, and good bytes gone bad. All of it drawn from `draws`."""

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

NUMBERS = (
    *("0", "-1", "-0", "1.5", "1e3", "1e400", "-1e400", "nan", "inf", "-inf", "NaN", "0x10", "1_0"),
    *(str(2**31), str(2**32), str(2**63), str(-(2**63) - 1), str(2**64), str(10**18), str(10**30)),
    *(
        "9" * 400,
        "9" * 5000,
        "1" + "0" * 4299,
        "\u0661\u0662",
        "1e-400",
        "--1",
        "+ 1",
        "0b1",
        "1,5",
    ),
)
WORDS = (
    *("", " ", "\t", "\n", "a\0b", "\0", "None", "true", "[]", "[[[", "{}", "%s%n", "{0}", "$(id)"),
    *("..", "../../x", "/", "//", ".", "~", "/dev/null", "/dev/zero", "/proc/self/mem", "/etc"),
    *("a" * 300, "a" * 5000, "a/" * 3000, "\x1b[31mred", "\r", "\ud800", "\udcff", "\u202e", "é💥"),
    *(
        "-",
        "--",
        "=",
        "a=b",
        ":",
        "::",
        ".py:",
        "x.py:",
        "x.py:f",
        ":f",
        "../x.py:f",
        "cuda:999999",
    ),
    *("iid:", "dirichlet:", "dirichlet:nan", "dirichlet:1e-320", "dirichlet:1e308", "shards:-1"),
    *(
        "shards:" + "9" * 30,
        "shards:" + "9" * 5000,
        "wrn-10-99999",
        "wrn-99999999994-1",
        "wrn--1-1",
    ),
    *("wrn-" + "9" * 5000 + "-1", "cpu:1", "meta", "cuda:-1", "mps", "flfl\0", "FLFL"),
)
BAD_BYTES = (
    *(b"", b"\0", b"\0" * 4096, b"\xff" * 300, b"PK\x05\x06" + bytes(18), b"\x93NUMPY", b"{", b"]"),
    *(
        b"\x80\x04N.",
        pickle.dumps({"a": np.zeros(2)}),
        b"\xef\xbb\xbf",
        b"\xff\xfea\0",
        b"[" * 9000,
    ),
)
JSON_VALUES = (
    *(None, True, [], {}, "", "x", -1, 0, 1.5, 10**12, 10**30, float("nan"), float("inf"), [[[1]]]),
    *(-(10**30), 1e300, "9" * 400, {"a": {"a": {}}}, [None], "\0", "\ud800"),
)
DTYPES = ("f4", "f8", "i1", "i4", "u8", ">i8", ">f8", "c16", "?", "U3", "S5", "f2", "M8[s]")


def hostile_word(draws: Random) -> str:
    return draws.choice(draws.choice((NUMBERS, WORDS)))


def damage(content: bytes, draws: Random) -> bytes:
    """Bytes flipped, cut off, moved, doubled, wiped, added or replaced."""
    size = len(content)
    a, b = sorted((draws.randrange(size + 1), draws.randrange(size + 1)))
    b = min(b, a + 4096)

    def flip() -> bytes:
        flipped = bytearray(content)
        for _ in range(draws.randint(1, 8)):
            place = min(draws.randrange(size), draws.randrange(size))  # where the headers are
            flipped[place] ^= 1 << draws.randrange(8)
        return bytes(flipped)

    ways: Sequence[Callable[[], bytes]] = (
        flip,
        lambda: content[:a],
        lambda: content[a:],
        lambda: content[:a] + content[b:],
        lambda: content[:a] + bytes(b - a) + content[b:],
        lambda: content[:a] + content[a:b] * 2 + content[b:],
        lambda: content + draws.randbytes(draws.choice((1, 100, 70_000))),
        lambda: content[:a] + draws.randbytes(16) + content[a:],
        lambda: content[b:] + content[:b],
        lambda: draws.choice(BAD_BYTES),
        lambda: content[:a] + draws.choice(BAD_BYTES) + content[a:],
    )
    if not size:
        return draws.choice(BAD_BYTES)
    return flip() if draws.random() < 0.3 else draws.choice(ways)()


def npy_bytes(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def bad_header(array: np.ndarray, draws: Random) -> bytes:
    """A .npy whose header claims what its content does not bear out."""
    num = draws.choice((-1, 0, 1, 10**6, 2**31, 2**62, 2**64, 10**30, "x", 1.5, True, None))
    shape = draws.choice(((num,), (num, *array.shape[1:]), array.shape[::-1], (), (num,) * 40, num))
    descr: Any = draws.choice(
        (array.dtype.str, "|O", "<f8", "|V0", "<U0", "|S999999999", "junk", 7)
    )
    descr = draws.choice((array.dtype.str, descr, [("a", "<i8"), ("b", "|O")], ("<i8", (2,))))
    fields = {"descr": descr, "fortran_order": draws.choice((False, True, 3)), "shape": shape}
    if draws.random() < 0.2:
        fields.pop(draws.choice(list(fields)))
    text = draws.choice((repr(fields), repr(fields), "(" * 500, "{" + "1" * 9000, repr(fields) * 2))
    size = draws.choice((len(text), len(text), 0, 65535, 2**31 - 1))
    version = draws.choice((1, 2, 3, 9))
    length = struct.pack("<H", size & 0xFFFF) if version == 1 else struct.pack("<I", size)
    return b"\x93NUMPY" + bytes((version, 0)) + length + text.encode() + array.tobytes()


def damaged_array(array: np.ndarray, draws: Random) -> bytes:
    """A .npy of other values, another type or shape, pickled, ill-headed or with damaged bytes."""
    flat = np.ascontiguousarray(array)

    def other_values() -> bytes:
        changed = flat.astype(draws.choice(("f8", "i8", "i8", "f4")))
        values = (np.nan, np.inf, -1, 10**12, 2**63 - 1, 9_999, 10_000, 255, 0)
        value = draws.choice(values if changed.dtype.kind == "f" else values[2:])
        changed.flat[draws.randrange(max(changed.size, 1)) : draws.choice((None, 1))] = value
        return npy_bytes(changed)

    def other_shape() -> bytes:
        shapes = ((-1,), (1, -1), (*flat.shape, 1), flat.shape[::-1])
        return npy_bytes(flat.reshape(draws.choice(shapes)))

    def other_type() -> bytes:
        return npy_bytes(flat.astype("i8").astype(draws.choice(DTYPES)))

    ways: Sequence[Callable[[], bytes]] = (
        other_values,
        other_shape,
        other_type,
        lambda: npy_bytes(flat[: draws.randrange(len(flat) + 1)] if flat.ndim else flat),
        lambda: npy_bytes(np.asfortranarray(flat)),
        lambda: npy_bytes(np.array([{"a": 1}, None], dtype=object)),
        lambda: bad_header(flat, draws),
        lambda: bad_header(flat, draws),
        lambda: damage(npy_bytes(flat), draws),
        lambda: damage(npy_bytes(flat), draws),
    )
    return draws.choice(ways)()


def zip_bytes(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=compression)
    return file.getvalue()


def lying_zip(content: bytes, draws: Random) -> bytes:
    """A zip file whose table of contents states other sizes, methods or flags than are true."""
    changed = bytearray(content)
    places = _places(content, b"PK\x01\x02")
    if places:
        place = draws.choice(places)
        offset, size = draws.choice(((10, 2), (8, 2), (20, 4), (24, 4), (28, 2), (42, 4)))
        value = draws.choice((0, 1, 12, 14, 99, 0xFFFF, 2**31, 0xFFFFFFFF, 100))
        changed[place + offset : place + offset + size] = value.to_bytes(8, "little")[:size]
    return bytes(changed)


def _places(content: bytes, word: bytes) -> list[int]:
    found, place = [], content.find(word)
    while place >= 0:
        found.append(place)
        place = content.find(word, place + 1)
    return found


def damaged_json(value: Any, draws: Random) -> str:
    """A table with other values, names or nesting, or damaged as text."""
    text = json.dumps(value)
    way = draws.randrange(4)
    if way == 0:
        return damage(text.encode(), draws).decode("utf-8", "replace")
    if way == 1:
        return draws.choice(
            ("[" * 9000, '{"a":' * 9000, "1" * 5000, "null", "[]", "3", "{}", '"x"')
        )
    changed = json.loads(text)
    inside = changed
    while isinstance(inside, dict | list) and inside:
        place = draws.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
        if not isinstance(inside[place], dict | list) or draws.random() < 0.3:
            if isinstance(inside, dict) and draws.random() < 0.3:
                inside.pop(place)
            else:
                inside[place] = draws.choice(JSON_VALUES)
            break
        inside = inside[place]
    return json.dumps(changed)
