"""Generators of bad input, one for each way into the command; GENERATORS lists them."""

import hashlib
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import click
import numpy as np
import torch

from benchmarks.damage import (
    BAD_BYTES,
    NUMBERS,
    damage,
    damaged_array,
    damaged_json,
    hostile_word,
    lying_zip,
    npy_bytes,
    zip_bytes,
)
from fl2fast.cli.train import train_command
from fl2fast.data import streetdigits
from fl2fast.experiment import Experiment
from fl2fast.methods import METHODS
from fl2fast.methods.options import method_options
from fl2fast.models.layout import Layout
from fl2fast.models.wrn import WideResNet
from fl2fast.reproduce.cells import find_target, make_cells
from fl2fast.reproduce.run import cell_folder, make_experiment


class Case(NamedTuple):
    """A command line; its files have been written into its folder, which is where it runs."""

    args: list[str]
    accepted: tuple[int, ...] = (0,)  # exit codes of input that turned out good
    made: tuple[str, ...] = ()  # what it may then leave in its folder,
    kept: tuple[str, ...] = ()  # and what even if it is refused


class Place(NamedTuple):
    """Where a case's files go."""

    folder: Path
    cache: Path


Generator = Callable[[Random, Place], Case]

# A run that turns out to be possible is over in a moment.
TINY: tuple[str, ...] = (
    "--labels",
    "6",
    "--clients",
    "2",
    "--cohort",
    "1",
    "--rounds",
    "1",
    "--epochs",
    "1",
)
TINY += ("--pretrain", "0", "--model", "cnn", "--lowering", "loop", "--augment", "torch")
REFUSED = (
    *(("--labels", "0"), ("--rounds", "-1"), ("--method", "x"), ("--device", "toaster")),
    *(("--preset", "slow"), ("--seeds", "4097"), ("--lr", "nan"), ("--partition", "shards:0")),
)
PATHS = ("out", "data_dir")
VALUED = [p for p in train_command.params if p.name not in (*PATHS, "dry_run")]
FIELDS = [*(field.name for field in fields(Experiment)), *PATHS, "preset"]
TOML_VALUES = (
    *("3", "-1", "0", "1.5", "nan", "inf", "-inf", "true", '"x"', '""', "[]", "[1]", "[[]]", "{}"),
    *(
        '"a\\u0000b"',
        "[nan, 1.0, 1.0]",
        "[0.5, 0.5, 0.5]",
        "9223372036854775808",
        "1e999",
        "1979-05-27",
    ),
    *("0x" + "f" * 900, "0x" + "f" * 9000, "9" * 400, "9" * 5000, "0b" + "1" * 990, "'../../x'"),
    *(
        "[" * 400,
        "[" * 5000,
        "{a={a={a=1}}}",
        '"\\ud800"',
        "'''x",
        "=",
        "1 2",
        "[1e300,1e300,1e300]",
    ),
    *(
        '"svhn"',
        '"cnn"',
        '"iid"',
        '"cpu"',
        '"auto"',
        '"flfl"',
        '"semifl"',
        "10",
        "0.5",
        '"dirichlet:1"',
    ),
)
PLUGIN = '''"""A model and a method."""

from typing import Literal

from torch import nn

from fl2fast.methods.fixmatch import fixmatch


def f(*args, sure: float = 0.9, kind: Literal["a", "b"] = "a", steps: int = 3):
    """Docs.

    Reference: none.
    """
    if args:
        return nn.Sequential(nn.Flatten(), nn.Linear(192, args[0]))
    return fixmatch(sure=sure)
'''
PLUGINS = (
    *(
        "raise SystemExit(0)",
        "raise SystemExit('no')",
        "1 / 0",
        "f = 3",
        "f = dict",
        "f = print",
        "",
    ),
    *(
        "import sys\nsys.exit(2)",
        "def f(:",
        "\0",
        "f = type",
        "raise MemoryError",
        "import nowhere",
    ),
    *(
        "def g():\n    return g()\ng()",
        "f = " + "(" * 3000,
        "f = lambda: 3",
        "f = lambda n=1: None",
    ),
    *("def f(*, a: 'Nope' = 1): pass", "def f(*, a): pass", "f = object()", "class f: pass"),
    *(
        "def __getattr__(n):\n    raise ValueError(n)",
        "def f(): raise KeyError('x')",
        "x = '\\ud800'",
    ),
    *(
        "def f(): '''\\ud800'''\n",
        "def f(): pass\nf.protocol = 3",
        "def f(): import sys; sys.exit(0)",
    ),
    *("def f(): pass\nf.protocol = {'rounds': 'x'}", "def f(): pass\nf.protocol = {3: 4}"),
    *(
        "def f(n=3): return n",
        "class E(Exception):\n    def __repr__(s): 1/0\nraise E",
        "f = __import__",
    ),
    *(
        "class M(type):\n    def __repr__(s): return 'x' * 10**6\nclass f(metaclass=M): pass",
        "# \xff",
    ),
)
AGNEWS_ROW = '"{}","a title","some text of words, number {}"\n'
TRACE_CONFIG: dict[str, Any] = {
    **{"method": "flfl", "model": "wrn", "depth": 10, "widen": 1, "classes": 5, "clients": 1},
    **{"batch": 4, "rho": 0.1, "eta": 0.01, "tau_f": 0.5, "lr": 0.03, "momentum": 0.9},
    **{"nesterov": True, "weight_decay": 5e-4, "clip": 1.0, "aggregate_momentum": 0.5},
    **{"w_a": 1.0, "w_cs": 1.0},
}


def good_images(side: int = 8) -> dict[str, np.ndarray]:
    train = np.arange(24 * 3 * side * side).reshape(24, 3, side, side) % 251
    return {
        "train_images": train.astype(np.uint8),
        "train_labels": np.arange(24) % 3,
        "test_images": train[:6].astype(np.uint8),
        "test_labels": np.arange(6) % 3,
    }


def good_trace() -> dict[str, np.ndarray]:
    """Of the right shapes, though nothing in it agrees."""
    module = WideResNet(10, 1, 5)
    layout = Layout.of(dict(module.named_parameters()))
    trees = ("global0", "aggregated", "global1", "server_momentum1", "aggregate_momentum1")
    trees += ("client0/params1", "client0/momentum1", "client0/step0/grads")
    norms = [n for n, m in module.named_modules() if isinstance(m, torch.nn.BatchNorm2d)]
    arrays = {
        f"{tree}/{name}": np.full(shape, 0.01, np.float32)
        for tree in trees
        for name, shape in zip(layout.names, layout.shapes, strict=True)
    }
    arrays |= {
        f"{stage}/{norm}.{kind}": np.ones(module.get_submodule(norm).num_features)  # type: ignore[arg-type]
        for stage in ("sbn0", "sbn1")
        for norm in norms
        for kind in ("mean", "var")
    }
    ramp = np.linspace(-1, 1, 4 * 3 * 8 * 8).reshape(4, 3, 8, 8)
    arrays |= dict.fromkeys(("sbn_batch0", "client0/weak", "test/x", "server/step0/x"), ramp)
    arrays |= {"client0/step0/rows": np.arange(3), "client0/step0/strong": ramp[:3]}
    arrays |= {"client0/steps": np.array(1), "client0/probs": np.full((4, 5), 0.2)}
    arrays |= {"client0/tau": np.array(0.2), "client0/tau_c": np.full(5, 0.2), "beta": np.ones(1)}
    arrays |= {"client0/y": np.zeros(4, int), "server/step0/y": np.arange(4)}
    arrays |= {f"client0/{name}": np.ones(4, bool) for name in ("keep", "sure")}
    return arrays | {"test/logits": np.zeros((4, 5))}


def _tiny_flags(draws: Random) -> list[str]:
    """As they are, or with one value exchanged."""
    flags = list(TINY)
    if draws.random() < 0.3:
        flags[2 * draws.randrange(len(flags) // 2) + 1] = hostile_word(draws)
    return flags


def _hostile_flags(draws: Random, num: int) -> list[str]:
    flags = []
    for _ in range(num):
        option = draws.choice(VALUED)
        flags.append(option.opts[0])
        if draws.random() < 0.98:
            flags.append(_value(option, draws))
    if draws.random() < 0.1:
        flags.insert(draws.randrange(len(flags) + 1), hostile_word(draws))
    return flags


def _value(option: click.Parameter, draws: Random) -> str:
    """More often than not of the option's type."""
    if option.type.name == "text" or draws.random() < 0.1:
        return hostile_word(draws)
    number = draws.choice((0, 1, 2, 10, 2**16, 10**6, 2**31, 2**32, 2**63, 2**64, 10**30, 10**400))
    return str(draws.choice((1, 1, -1)) * number) if draws.random() < 0.7 else draws.choice(NUMBERS)


def dry_flags(draws: Random, place: Place) -> Case:
    return Case(["train", "--dry-run", *_hostile_flags(draws, draws.randint(1, 3))])


def refused_flags(draws: Random, place: Place) -> Case:
    """Of commands that would cost time: one flag is certainly refused, the others may be."""
    command = draws.choice(("train", "plan", "profile", "tune"))
    flags = [*_hostile_flags(draws, draws.randint(0, 2)), *draws.choice(REFUSED)]
    if draws.random() < 0.3 and command in ("train", "profile"):
        flags += ["--out", hostile_word(draws)]
    return Case([command, *flags], ())


def odd_outs(draws: Random, place: Place) -> Case:
    """Folders that are no folders, are not empty, or cannot be; nothing is trained."""
    (place.folder / "full").mkdir()
    (place.folder / "full" / "thesis.txt").write_text("years of work")
    (place.folder / "file").write_text("no folder")
    (place.folder / "loop").symlink_to("loop")
    spots = (
        "full",
        "file",
        "file/below",
        "loop",
        "loop/x",
        "a\0b",
        "x" * 300,
        "/proc/none",
        "\ud800",
    )
    out = draws.choice((*spots, *spots, ""))
    _write_folder(place.folder / "data", good_images())
    tiny = ["--dataset", "data", *TINY]
    command = draws.choice((["demo"], ["train", *tiny], ["profile", *tiny], ["reproduce", "fig1"]))
    args = [*command, "--out", out] if out else [*command, "--out"]
    return Case(args, (), kept=("full/cells",))  # reproduce's, where processes find each other


def words(draws: Random, place: Place) -> Case:
    """The small commands, with words that they do not know."""
    word, other = hostile_word(draws), hostile_word(draws)
    return Case(
        draws.choice(
            (
                [word],
                [word, other],
                ["list", word],
                ["show", word],
                ["show", word, other],
                ["bench", draws.choice((word, "step", "nope")), other],
                ["data", word],
                ["data", "list", word],
                ["data", "list", "--data-dir", word],
                ["data", "get", word, "--data-dir", other],
                [
                    "data",
                    "get",
                    "svhn",
                    "--data-dir",
                    draws.choice(("new", "/proc/x", "a\0", "\ud800")),
                ],
                ["data", "show", word, "--out", other],
                ["data", "show", "streetdigits", "--count", word, "--out", "x.txt"],
                ["data", "import", word, other],
                ["data", "import", "svhn", word],
                ["verify", word],
                ["verify", "x.npz", "--lowering", word],
                ["demo", "x", word],
                ["demo", "--out", "", word],
                ["profile", "--steps", word, "--labels", "0"],
                ["plan", "--memory", word, "--no-here", "--labels", "0"],
                ["plan", "--gpu", word, "--no-here"],
                ["reproduce", word],
                ["reproduce", "fig1", "--list", "--scale", word],
                ["reproduce", "fig1", "--list", "--seeds", word],
                ["reproduce", "fig1", "--list", "--cells", word, "--dataset", other],
                ["reproduce", "fig1", "--list", "--out", word],
                ["reproduce", "fig1", "--device", "toaster", "--lowering", word],
            )
        )
    )


def config(draws: Random, place: Place) -> Case:
    lines = [
        f"{draws.choice(FIELDS)} = {draws.choice(TOML_VALUES)}" for _ in range(draws.randint(1, 4))
    ]
    if draws.random() < 0.2:
        names = ("options", "a.b", '""', ".".join("a" * 400), "a" * 999, "rounds", "[x]", "é")
        lines.insert(draws.randrange(len(lines) + 1), f"[{draws.choice(names)}]")
    content = "\n".join(lines).encode("utf-8", "surrogatepass")
    if draws.random() < 0.3:
        content = damage(content, draws)
    if draws.random() < 0.02:
        content = draws.choice((b"a." * 40_000 + b"a = 1", b"x = 1\n" * 20_000, b"[" * 65_000))
    path = place.folder / "c.toml"
    path.write_bytes(content)
    if draws.random() < 0.02:
        path.unlink()
        path.symlink_to(draws.choice(("/dev/zero", "c.toml", ".", "/proc/self/mem")))
    refused = list(draws.choice(REFUSED))
    command = draws.choice((["train", "--dry-run"], ["train", "--dry-run"], ["tune", *refused]))
    return Case([*command, "--config", "c.toml"])


def options(draws: Random, place: Place) -> Case:
    method = draws.choice(list(METHODS))
    names = [*method_options(METHODS[method]), "x"]
    pairs = []
    for _ in range(draws.randint(1, 3)):
        value = draws.choice((hostile_word(draws), draws.choice(TOML_VALUES)))
        name = draws.choice(names) if draws.random() < 0.9 else hostile_word(draws)
        pairs += ["--option", f"{name}={value}"]
    return Case(["train", "--dry-run", "--method", method, *pairs])


def folder(draws: Random, place: Place) -> Case:
    """A dataset of .npy files of which one or two are bad."""
    _write_bad_folder(place.folder / "svhn", good_images(), draws)
    mine = ["--dataset", "./svhn"]
    command, made = draws.choice(
        (
            (["train", *mine, *_tiny_flags(draws), "--out", "run"], ("run",)),
            (["train", *mine, *_tiny_flags(draws), "--out", "run"], ("run",)),
            (["train", *mine, *TINY, "--labels", "7"], ()),
            (["train", *mine, *TINY, "--partition", "dirichlet:0.1"], ()),
            (
                ["plan", "--no-here", *mine, "--gpu", "T4", *TINY, "--labels", "24"],
                (),
            ),
            (["data", "show", "./svhn", "--out", "g.txt", "--count", "2"], ()),
            (["data", "import", "svhn", "svhn", "--data-dir", "new"], ()),
            (["data", "import", "cifar100", "svhn", "--data-dir", "new"], ()),
            (["data", "show", "svhn", "--data-dir", ".", "--count", "2", "--out", "g.txt"], ()),
        )
    )
    return Case(command, made=made)


def _write_folder(data: Path, arrays: dict[str, np.ndarray]) -> None:
    data.mkdir(parents=True)
    for name, array in arrays.items():
        (data / f"{name}.npy").write_bytes(npy_bytes(array))


def _write_bad_folder(data: Path, arrays: dict[str, np.ndarray], draws: Random) -> None:
    _write_folder(data, arrays)
    bad = draws.sample(list(arrays), draws.choice((0, 1, 1, 1, 1, 1, 2, 2)))
    for name in bad:
        (data / f"{name}.npy").write_bytes(damaged_array(arrays[name], draws))
    if bad and draws.random() < 0.05:
        path = data / f"{bad[0]}.npy"
        path.unlink()
        draws.choice((path.mkdir, lambda: None, lambda: path.symlink_to("/dev/zero")))()


def drawn_cache(draws: Random, place: Place) -> Case:
    """The cache of streetdigits, damaged; where it is not, the number of labels is refused."""
    path = place.folder / "c.toml"
    path.write_text("train_size = 24\ntest_size = 6\n")
    source = streetdigits_folder(place.cache)
    _write_bad_folder(source, good_images(draws.choice((32, 32, 32, 8))), draws)
    return Case(["train", "--config", "c.toml", *TINY, "--labels", "7", "--out", "run"], ())


def streetdigits_folder(cache: Path) -> Path:
    source = hashlib.sha256(Path(streetdigits.__file__).read_bytes()).hexdigest()[:12]
    return cache / "fl2fast" / f"streetdigits-{source}-24-6-0"


def texts(draws: Random, place: Place) -> Case:
    """AG News whose files are bad; where they are not, there is no such encoder."""
    data = place.folder / "agnews"
    data.mkdir()
    for split, num in (("train", 16), ("test", 8)):
        rows = "".join(AGNEWS_ROW.format(i % 4 + 1, i) for i in range(num))
        if draws.random() < 0.3:
            header = draws.choice(
                ("class,title,text", "label,text,aug_0", "class,text,aug_" + "9" * 5000)
            )
            rows = header + "\n" + rows
        content = rows.encode()
        if draws.random() < 0.7:
            content = damage(content, draws)
        if draws.random() < 0.2:
            label = hostile_word(draws).encode("utf-8", "surrogatepass")
            content = content.replace(b'"1"', b'"' + label + b'"', 1)
        if draws.random() < 0.05:
            content += (
                b'"1","t","' + draws.choice((b"w " * 9000, b"w" * 200_000, b"\0" * 99)) + b'"\n'
            )
        (data / f"{split}.csv").write_bytes(content)
    config = place.folder / "c.toml"
    config.write_text(f"train_size = {draws.choice((0, 4, 5, 10**6))}\n")
    encoder = draws.choice(("nope", "../..", "a\0b", "", ".", "x" * 300, "agnews", "\ud800"))
    flags = ["--dataset", "agnews", "--data-dir", ".", "--encoder", encoder, "--labels", "4"]
    return Case(["train", *flags, "--config", "c.toml", "--out", "run"], ())


def trace(draws: Random, place: Place) -> Case:
    arrays = good_trace()
    members = {f"{name}.npy": npy_bytes(array) for name, array in arrays.items()}
    settings = json.dumps(TRACE_CONFIG)
    way = draws.randrange(5)
    if way == 0:
        settings = damaged_json(TRACE_CONFIG, draws)
    members["config.npy"] = npy_bytes(np.array(settings))
    if way == 1:
        for name in draws.sample(list(arrays), draws.randint(1, 2)):
            members[f"{name}.npy"] = damaged_array(arrays[name], draws)
    if way == 2:
        members.pop(draws.choice(list(members)))
    if way == 3 and draws.random() < 0.2:
        members["bomb.npy"] = npy_bytes(np.zeros(8 << 20))
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
    content = zip_bytes(members, methods[draws.choice((0,) * 9 + (1,) * 5 + (2,))])
    if way == 3:
        content = lying_zip(content, draws)
    if way == 4:
        content = damage(content, draws)
    (place.folder / "t.npz").write_bytes(content)
    dtype = draws.choice(("float32", "float64"))
    return Case(["verify", "t.npz", "--lowering", "loop", "--dtype", dtype], (0, 1))


def plugin(draws: Random, place: Place) -> Case:
    source = (
        PLUGIN.encode()
        if draws.random() < 0.5
        else draws.choice(PLUGINS).encode("latin1", "replace")
    )
    if draws.random() < 0.5:
        source = draws.choice((damage(source, draws), source + draws.choice(BAD_BYTES)))
    (place.folder / "m.py").write_bytes(source)
    name = draws.choice(("m.py:f", "m.py:f", "m.py:f", "m.py:", "m.py:f:f", "m.py:a\0", "./m.py:f"))
    commands: Sequence[list[str]] = (
        ["train", "--dry-run", "--method", name, "--option", f"kind={hostile_word(draws)}"],
        ["train", "--dry-run", "--method", name],
        ["train", "--dry-run", "--model", name],
        ["show", name],
        ["train", *TINY, "--dataset", "data", "--model", name, "--labels", "7"],
        ["train", *TINY, "--dataset", "data", "--model", name, "--out", "run"],
        ["plan", "--no-here", "--gpu", "T4", *TINY, "--dataset", "data", "--model", name],
    )
    command = draws.choices(commands, (4, 4, 4, 6, 3, 1, 1))[0]
    if "data" in command:
        _write_folder(place.folder / "data", good_images())
    return Case(command, made=("run",))


def finished_cells(draws: Random, place: Place) -> Case:
    """The folders of finished cells of a table, damaged."""
    cell = make_cells(find_target("table2"), "mini", 2)[0]
    own = cell_folder(cell, place.folder / "out")
    own.mkdir(parents=True)
    rows = [{"round": r, "seed": s, "test_accuracy": 50.0} for r in (1, 2) for s in (0, 1)]
    files = {
        "summary.json": {"seeds": [{"seed": s, "test_accuracy_last": 50.0} for s in (0, 1)]},
        "config.json": asdict(make_experiment(cell)),
    }
    bad = draws.choice((*files, "metrics.jsonl"))
    for name, content in files.items():
        text = damaged_json(content, draws) if name == bad else json.dumps(content)
        (own / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    lines = [json.dumps(row) for row in rows]
    if bad == "metrics.jsonl":
        lines[draws.randrange(len(lines))] = damaged_json(draws.choice(rows), draws)
    if draws.random() < 0.95:
        (own / "metrics.jsonl").write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    return Case(
        ["reproduce", "table2", "--scale", "mini", "--seeds", "2", "--list", "--out", "out"]
    )


def verdicts(draws: Random, place: Place) -> Case:
    """What was timed before, damaged: it is timed anew, or taken."""
    for path in sorted((place.cache / "fl2fast" / "tuned").glob("*.json")):
        text = damaged_json(json.loads(path.read_text()), draws)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    _write_folder(place.folder / "data", good_images())
    return Case(["tune", "--dataset", "data", *TINY])


GENERATORS: dict[str, tuple[Generator, int]] = {  # and how often, in relation to the others
    "train --dry-run": (dry_flags, 14),
    "flags of costly commands": (refused_flags, 14),
    "--out": (odd_outs, 3),
    "words": (words, 16),
    "--config": (config, 16),
    "--option": (options, 8),
    "a folder of .npy": (folder, 16),
    "cached streetdigits": (drawn_cache, 4),
    "agnews": (texts, 6),
    "verify": (trace, 6),
    "a .py file": (plugin, 12),
    "finished cells": (finished_cells, 4),
    "cached verdicts": (verdicts, 1),
}


def make_case(seed: int, number: int, place: Place) -> tuple[str, Case]:
    """The case of this number: its entry point, and its command line with all its files."""
    draws = Random(f"{seed}:{number}")
    name = draws.choices(list(GENERATORS), [often for _, often in GENERATORS.values()])[0]
    return name, GENERATORS[name][0](draws, place)
