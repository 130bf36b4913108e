"""`fl2fast verify`: replayed rounds agree with the oracle's, and a wrong one cannot pass."""

import gc
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import CONFIG, one_thread, record_round

from fl2fast.errors import UsageError
from fl2fast.verify import Trace, verify

LOWERINGS = ("loop", "vmap", "grouped", "cores")

# Seeds are chosen for what `test_traces_cover_every_kind_of_batch` and `..._with_a_margin` ask.
TRACES: dict[str, dict[str, Any]] = {
    "plain": {"seed": 3, "sizes": (12, 9, 5), "tau_f": 0.98},
    "deep": {
        "seed": 2,
        "depth": 16,
        "classes": 3,
        "sizes": (9, 6),
        "fresh": (0,),
        "batch": 6,
        "rho": 1.0,
        "lr": 0.1,
        "tau_f": 0.9,
        "momentum": 0.5,
        "nesterov": False,
    },
    "wide": {
        "seed": 5,
        "widen": 2,
        "classes": 10,
        "side": 16,
        "sizes": (14,),
        "fresh": (),
        "batch": 8,
        "rho": 0.5,
        "tau_f": 0.75,
    },
    # A confidence below the thresholds, so that sure rows are rejected; a client with one image.
    "loose": {
        "seed": 5,
        "sizes": (9, 1, 8, 6),
        "epochs": 1,
        "tau_f": 0.6,
        "eta": 0.1,
        "w_a": 2.0,
        "w_cs": 0.5,
        "clip": 0.25,
        "weight_decay": 0.0,
        "aggregate_momentum": 0.9,
    },
}
STAGES = (
    "sbn0",
    "probs",
    "tau",
    "tau_c",
    "y",
    "keep",
    "sure",
    "steps",
    "step0/grads",
    "params1",
    "momentum1",
    "beta",
    "aggregated",
    "aggregate_momentum1",
    "global1",
    "server_momentum1",
    "sbn1",
    "test/logits",
)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("traces")
    with one_thread():
        for name, options in TRACES.items():
            record_round(folder / f"{name}.npz", **options)
    return {name: folder / f"{name}.npz" for name in TRACES}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clients, an epoch of two steps each: for tests that replay many variants."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.npz"
    with one_thread():
        record_round(path, seed=4, sizes=(8, 7), epochs=1, tau_f=0.8)
    return path


def failed(path: Path, dtype: str = "float64", lowering: str = "grouped") -> list[str]:
    return [check.stage for check in verify(Trace(path), lowering, dtype) if not check.passed]


def copy_of(
    path: Path, folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]
) -> Path:
    """The trace after `change(arrays, config)`."""
    with np.load(path) as archive:
        arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
    config = json.loads(str(arrays.pop("config")))
    change(arrays, config)
    np.savez(folder / "changed.npz", config=json.dumps(config), **arrays)
    return folder / "changed.npz"


# -- agreement -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", TRACES)
def test_replay_agrees(traces: dict[str, Path], name: str, lowering: str, dtype: str) -> None:
    checks = verify(Trace(traces[name]), lowering, dtype)
    assert [check.stage for check in checks if not check.passed] == []
    assert {check.stage for check in checks} == set(STAGES)
    if dtype == "float64":
        assert all(check.tolerance is not None for check in checks)


def test_traces_cover_every_kind_of_batch(traces: dict[str, Path]) -> None:
    seen, fresh = set(), set()
    for path in traces.values():
        trace = Trace(path)
        assert trace.config.keys() == CONFIG.keys()
        for c in range(trace.config["clients"]):
            fresh.add(f"client{c}/momentum0/head.bias" not in trace.arrays)
            assert trace.count(f"client{c}/step{{}}/rows") == trace[f"client{c}/steps"]
            for t in range(int(trace[f"client{c}/steps"])):
                rows = trace[f"client{c}/step{t}/rows"]
                sure = trace[f"client{c}/sure"][rows]
                kind = "all" if sure.all() else "some" if sure.any() else "none"
                seen.add((kind, len(rows) == trace.config["batch"]))
    assert seen == {(kind, full) for kind in ("all", "some", "none") for full in (True, False)}
    assert fresh == {True, False}


def test_some_sure_rows_are_rejected(traces: dict[str, Path]) -> None:
    trace = Trace(traces["loose"])
    pairs = [
        (trace[f"client{c}/sure"], trace[f"client{c}/keep"]) for c in range(trace.config["clients"])
    ]
    assert any((sure & ~keep).any() for sure, keep in pairs)


def test_masks_are_decided_with_a_margin(traces: dict[str, Path]) -> None:
    """No row is so close to a threshold that float32 could decide it otherwise."""
    for path in traces.values():
        trace = Trace(path)
        for c in range(trace.config["clients"]):
            confidence = trace[f"client{c}/probs"].max(1)
            own = trace[f"client{c}/tau_c"][trace[f"client{c}/y"]]
            assert np.abs(confidence - trace.config["tau_f"]).min() > 1e-4
            if len(confidence) > 1:  # a single row meets its own mean exactly, in any precision
                assert np.abs(confidence - own).min() > 1e-4


def _recorded() -> list[Path | None]:
    folder = os.environ.get("FL2FAST_TRACES")
    return [None] if not folder else [*sorted(Path(folder).glob("*.npz"))] or [Path(folder)]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("path", _recorded(), ids=lambda path: path.stem if path else "unset")
def test_recorded_trace(path: Path | None, lowering: str, dtype: str) -> None:
    if path is None:
        pytest.skip("FL2FAST_TRACES is not set: give a folder of TRACE.npz files")
    assert path.is_file(), f"FL2FAST_TRACES: no TRACE.npz in {path}"
    assert failed(path, dtype, lowering) == []


# -- the check can fail ----------------------------------------------------------------------------


def _other_label(arrays: dict[str, Any]) -> None:
    arrays["client1/y"][0] = (arrays["client1/y"][0] + 1) % 5


def _flip(arrays: dict[str, Any], name: str) -> None:
    row = np.flatnonzero(arrays["client0/keep"])[0]
    arrays[name][row] ^= True


def _scale(name: str) -> Callable[[dict[str, Any]], None]:
    def change(arrays: dict[str, Any]) -> None:
        arrays[name] = arrays[name] * (1 + 1e-6)

    return change


WRONG_ARRAY: dict[str, Callable[[dict[str, Any]], None]] = {
    "sbn0": _scale("sbn0/stage2.block0.bn1.var"),
    "probs": _scale("client1/probs"),
    "tau": _scale("client0/tau"),
    "tau_c": _scale("client1/tau_c"),
    "y": _other_label,
    "keep": lambda arrays: _flip(arrays, "client0/keep"),
    "sure": lambda arrays: _flip(arrays, "client0/sure"),
    "steps": lambda arrays: arrays.update({"client1/steps": arrays["client1/steps"] + 1}),
    "step0/grads": _scale("client1/step0/grads/stage1.block0.bn2.bias"),
    "params1": _scale("client0/params1/head.weight"),
    "momentum1": _scale("client1/momentum1/stem.weight"),
    "beta": _scale("beta"),
    "aggregated": _scale("aggregated/stage3.block0.shortcut.weight"),
    "aggregate_momentum1": _scale("aggregate_momentum1/head.bias"),
    "global1": _scale("global1/stage2.block0.conv1.weight"),
    "server_momentum1": _scale("server_momentum1/head_bn.weight"),
    "sbn1": _scale("sbn1/head_bn.mean"),
    "test/logits": _scale("test/logits"),
}


def test_the_tiny_trace_passes(tiny: Path) -> None:
    assert failed(tiny) == []
    assert tuple(WRONG_ARRAY) == STAGES


@pytest.mark.parametrize("stage", STAGES)
def test_a_wrong_array_fails_its_stage_alone(tiny: Path, tmp_path: Path, stage: str) -> None:
    path = copy_of(tiny, tmp_path, lambda arrays, _: WRONG_ARRAY[stage](arrays))
    assert failed(path) == [stage]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("name", "stage"), [("client0/params1/head.bias", "params1"), ("test/logits", "test/logits")]
)
def test_a_value_that_is_not_finite_fails(
    tiny: Path, tmp_path: Path, name: str, stage: str, value: float, dtype: str
) -> None:
    """In float32 too, where these stages are shown but not judged."""

    def change(arrays: dict[str, Any], _: dict[str, Any]) -> None:
        arrays[name].flat[-1] = value

    assert failed(copy_of(tiny, tmp_path, change), dtype) == [stage]


def test_nan_in_the_initial_weights_fails(tiny: Path, tmp_path: Path) -> None:
    def change(arrays: dict[str, Any], _: dict[str, Any]) -> None:
        arrays["global0/stem.weight"].flat[0] = np.nan

    assert {"probs", "step0/grads", "global1", "test/logits"} <= set(
        failed(copy_of(tiny, tmp_path, change))
    )


@pytest.mark.parametrize(
    ("key", "value", "first"),
    [
        ("tau_f", 0.5, "sure"),
        ("w_cs", 1.5, "step0/grads"),
        ("w_a", 0.9, "step0/grads"),
        ("rho", 0.11, "step0/grads"),
        ("eta", 0.02, "step0/grads"),
        ("lr", 0.031, "params1"),
        ("momentum", 0.91, "params1"),
        ("nesterov", False, "params1"),
        ("weight_decay", 0.0, "params1"),
        ("clip", 0.5, "params1"),
        ("aggregate_momentum", 0.4, "aggregated"),
    ],
)
def test_a_wrong_setting_fails_from_its_stage_on(
    tiny: Path, tmp_path: Path, key: str, value: Any, first: str
) -> None:
    path = copy_of(tiny, tmp_path, lambda _, config: config.update({key: value}))
    assert failed(path)[0] == first


def test_swapped_views_fail(tiny: Path, tmp_path: Path) -> None:
    def change(arrays: dict[str, Any], _: dict[str, Any]) -> None:
        arrays["client0/step0/strong"] = arrays["client0/step0/strong"][::-1].copy()

    assert failed(copy_of(tiny, tmp_path, change))[0] == "step0/grads"


# -- traces that cannot be replayed ----------------------------------------------------------------


def refused(path: Path) -> str:
    """The message; it must be one line and name the path."""
    with pytest.raises(UsageError, match=re.escape(str(path))) as caught:
        verify(Trace(path), "grouped", "float64")
    message = str(caught.value)
    assert "\n" not in message
    del caught
    gc.collect()  # a file left open is reported here, not in some later test
    return message


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "absent.npz")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    refused(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_file_is_refused(tiny: Path, tmp_path: Path, share: float) -> None:
    content = tiny.read_bytes()
    refused(_write(tmp_path / "short.npz", content[: int(share * len(content))]))


@pytest.mark.parametrize("content", [b"not a zip\n", b"\x80\x04N.", b"PK\x03\x04" + bytes(60)])
def test_another_kind_of_file_is_refused(tmp_path: Path, content: bytes) -> None:
    refused(_write(tmp_path / "other.npz", content))


def test_a_single_array_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.zeros(3))
    refused((tmp_path / "array.npy").rename(tmp_path / "array.npz"))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_bytes_are_refused(tmp_path: Path, save: Callable[..., None]) -> None:
    """A checksum that does not match, and a compressed stream that cannot be read at all."""
    path = tmp_path / "damaged.npz"
    save(path, config=json.dumps(CONFIG), beta=np.arange(5000) % 7)
    content = bytearray(path.read_bytes())
    start = content.index(b"beta.npy") + (60 if save is np.savez_compressed else 2000)
    content[start : start + 8] = b"\xff" * 8
    refused(_write(path, bytes(content)))


@pytest.mark.parametrize("text", ["{", "[1, 2]", "3", ""])
def test_a_config_that_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    np.savez(tmp_path / "config.npz", config=text, beta=np.zeros(2))
    refused(tmp_path / "config.npz")


@pytest.mark.parametrize(
    "name",
    [
        "config",
        "global0/stem.weight",
        "sbn_batch0",
        "sbn0/head_bn.var",
        "client1/weak",
        "client0/tau",
        "client0/step0/strong",
        "client0/step0/grads/head.bias",
        "client1/params1/head.weight",
        "client0/momentum0/head.bias",
        "beta",
        "server/step0/y",
        "test/x",
    ],
)
def test_a_missing_array_is_refused(tiny: Path, tmp_path: Path, name: str) -> None:
    with np.load(tiny) as archive:
        arrays = {own: archive[own] for own in archive.files if own != name}
    np.savez(tmp_path / "missing.npz", **arrays)
    assert name in refused(tmp_path / "missing.npz")


READ = sorted(CONFIG.keys() - {"epochs", "side"})  # the arrays themselves say these two


@pytest.mark.parametrize("key", READ)
def test_a_missing_setting_is_refused(tiny: Path, tmp_path: Path, key: str) -> None:
    path = copy_of(tiny, tmp_path, lambda _, config: config.pop(key))
    assert repr(key) in refused(path)


@pytest.mark.parametrize(("key", "value"), [("method", "fedavg"), ("model", "cnn")])
def test_another_method_is_refused(tiny: Path, tmp_path: Path, key: str, value: str) -> None:
    path = copy_of(tiny, tmp_path, lambda _, config: config.update({key: value}))
    assert repr(value) in refused(path)


def test_a_reshaped_array_is_refused(tiny: Path, tmp_path: Path) -> None:
    def change(arrays: dict[str, Any], _: Any) -> None:
        arrays["client0/params1/head.weight"] = arrays["client0/params1/head.weight"].T

    with pytest.raises(UsageError, match=r"head\.weight"):
        failed(copy_of(tiny, tmp_path, change))
