"""Getting and importing datasets, over a real connection, with everything that goes wrong."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fl2fast.data import published
from fl2fast.data.arrays import Arrays, read_folder, write_folder
from fl2fast.data.prepare import get, import_files
from fl2fast.errors import UsageError
from tests.official_files import (
    Served,
    point_torchvision_at,
    serve,
    shrink,
    small_arrays,
    write_official,
)

NAMES = list(published.PUBLISHED)


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FL2FAST_OFFLINE")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def publish(name: str, files: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Arrays:
    arrays = small_arrays(name)
    write_official(name, arrays, files)
    point_torchvision_at(url, files, monkeypatch.setattr)
    shrink(name, arrays, monkeypatch.setitem)
    return arrays


def assert_prepared(folder: Path, arrays: Arrays) -> None:
    assert all(np.array_equal(a, b) for a, b in zip(read_folder(folder), arrays, strict=True))
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("name", NAMES)
def test_get_downloads_checks_and_prepares(
    name: str, files: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    with serve(files) as served:
        arrays = publish(name, files, served.url, monkeypatch)
        folder = get(name, data_dir, lambda title, done, total: steps.append(title))
        assert_prepared(folder, arrays)
        asked = served.asked.copy()
        assert get(name, data_dir) == folder
        assert served.asked == asked, "what is there is not asked for again"
    assert steps[-2:] == [f"reading {name}", f"writing {folder}"]


def test_a_corrupt_download_is_named_with_both_checksums(
    files: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(files) as served:
        arrays = publish("svhn", files, served.url, monkeypatch)
        path = files / "test_32x32.mat"
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(UsageError, match=r"test_32x32.*expected MD5 \w{32}, found \w{32}"):
            get("svhn", data_dir)
        assert not data_dir.exists()
        path.write_bytes(whole)
        assert_prepared(get("svhn", data_dir), arrays)


def test_a_broken_connection_leaves_nothing(
    files: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(files) as served:
        arrays = publish("cifar10", files, served.url, monkeypatch)
        served.break_off.add("cifar-10-python.tar.gz")
        with pytest.raises(UsageError, match=r"cannot be downloaded.*streetdigits"):
            get("cifar10", data_dir)
        assert not data_dir.exists()
        served.break_off.clear()
        assert_prepared(get("cifar10", data_dir), arrays)


def test_without_a_network_the_sentence_says_what_is_expected_where(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FL2FAST_OFFLINE", "1")
    with pytest.raises(
        UsageError, match=r"train_32x32\.mat and test_32x32\.mat.*import"
    ) as refusal:
        get("svhn", data_dir)
    assert str(data_dir / "svhn") in str(refusal.value)
    assert "--dataset streetdigits" in str(refusal.value)
    assert not data_dir.exists()


def test_a_packaged_dataset_needs_no_network(
    files: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FL2FAST_OFFLINE", "1")
    arrays = publish("fashion-mnist", files, "http://127.0.0.1:9", monkeypatch)
    entry = published.PUBLISHED["fashion-mnist"]._replace(packaged=files)
    monkeypatch.setitem(published.PUBLISHED, "fashion-mnist", entry)
    assert_prepared(get("fashion-mnist", data_dir), arrays)
    shutil.rmtree(data_dir)
    path = files / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UsageError, match="cannot be read"):
        get("fashion-mnist", data_dir)


# --- Several processes ----------------------------------------------------------------------------

DRIVER = """
import sys
from pathlib import Path
from tests.official_files import point_torchvision_at, shrink, small_arrays
from fl2fast.cli.main import main
url, files, data_dir = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
point_torchvision_at(url, files, setattr)
shrink("svhn", small_arrays("svhn"), dict.__setitem__)
main(["data", "get", "svhn", "--data-dir", data_dir])
"""


def start_get(served: Served, files: Path, data_dir: Path) -> subprocess.Popen:
    root = Path(__file__).parents[1]
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, served.url, str(files), str(data_dir)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def half_way(
    files: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Served, Arrays, subprocess.Popen]]:
    """A server and a process that has got the first file of svhn and half of the second."""
    with serve(files) as served:
        arrays = publish("svhn", files, served.url, monkeypatch)
        served.hold["test_32x32.mat"] = threading.Event()
        served.half_sent["test_32x32.mat"] = threading.Event()
        process = start_get(served, files, data_dir)
        try:
            assert served.half_sent["test_32x32.mat"].wait(60)
            yield served, arrays, process
        finally:
            process.kill()
            process.wait()


def test_two_at_once_download_once(half_way, files: Path, data_dir: Path) -> None:
    served, arrays, first = half_way
    second = start_get(served, files, data_dir)
    assert second.stderr is not None
    assert "waiting" in second.stderr.readline()
    served.hold["test_32x32.mat"].set()
    for process in (first, second):
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert f"svhn is in {data_dir / 'svhn'}" in out
    assert served.asked == {"train_32x32.mat": 1, "test_32x32.mat": 1}
    assert_prepared(data_dir / "svhn", arrays)


def test_a_killed_download_is_taken_up_by_the_next(half_way, data_dir: Path) -> None:
    served, arrays, process = half_way
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert [path.name for path in data_dir.iterdir()] == [".svhn.partial"]
    served.hold["test_32x32.mat"].set()
    assert_prepared(get("svhn", data_dir), arrays)
    assert served.asked == {"train_32x32.mat": 1, "test_32x32.mat": 2}


def test_an_import_after_a_killed_download(half_way, files: Path, data_dir: Path) -> None:
    _, arrays, process = half_way
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert_prepared(import_files("svhn", files, data_dir), arrays)


def test_an_interrupted_download_leaves_nothing(half_way, data_dir: Path) -> None:
    _, _, process = half_way
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith("fl2fast: interrupted\n")
    assert not data_dir.exists()


@contextmanager
def tmpfs(path: Path, size: str) -> Iterator[Path]:
    """A real file system of its own; only root may mount one."""
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True
    )
    if made.returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize("size", ["100k", "400k"])  # full while downloading, while writing arrays
def test_a_full_disk_is_said_and_cleared(
    size: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(files) as served, tmpfs(tmp_path / "disk", size) as disk:
        publish("svhn", files, served.url, monkeypatch)
        with pytest.raises(UsageError, match=r"no space left in .*disk.* about 551 MB; make room"):
            get("svhn", disk)
        assert list(disk.iterdir()) == []
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        get("svhn", disk)


def test_a_read_only_folder_is_used_or_refused(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(files) as served, tmpfs(tmp_path / "disk", "4m") as disk:
        arrays = publish("svhn", files, served.url, monkeypatch)
        write_folder(arrays, disk / "svhn")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert_prepared(get("svhn", disk), arrays)
        with pytest.raises(UsageError, match=r"cannot write to .*disk.*Read-only"):
            get("cifar10", disk)


def test_a_place_where_no_folder_can_be_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot write to '/proc/nowhere'"):
        get("svhn", Path("/proc/nowhere"))


# --- Import ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_import_takes_the_official_files(
    name: str, files: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = publish(name, files / "deep" / "inside", "http://127.0.0.1:9", monkeypatch)
    assert_prepared(import_files(name, files, data_dir), arrays)
    assert {path.suffix for path in files.rglob("*.*")} <= {".mat", ".gz"}, "the source is intact"
    with pytest.raises(UsageError, match="already"):
        import_files(name, files, data_dir)


def test_import_takes_one_file_of_a_folder(
    files: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = publish("cifar10", files, "http://127.0.0.1:9", monkeypatch)
    assert_prepared(import_files("cifar10", files / "cifar-10-python.tar.gz", data_dir), arrays)


def test_import_prefers_the_file_that_was_named(
    files: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = publish("cifar10", files, "http://127.0.0.1:9", monkeypatch)
    (files / "a").mkdir()
    (files / "a" / "cifar-10-python.tar.gz").write_bytes(b"another")
    for path in (files / "cifar-10-python.tar.gz", files):
        assert_prepared(import_files("cifar10", path, data_dir), arrays)
        shutil.rmtree(data_dir)


def test_a_dataset_of_other_images_is_refused(
    files: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("cifar10", files, "http://127.0.0.1:9", monkeypatch)
    entry = published.PUBLISHED["cifar10"]._replace(checksum="0" * 64)
    monkeypatch.setitem(published.PUBLISHED, "cifar10", entry)
    with pytest.raises(UsageError, match=r"files' hold other images: expected SHA-256 0+, found"):
        import_files("cifar10", files, data_dir)


def test_import_takes_arrays(files: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = small_arrays("svhn")
    write_folder(arrays, files)
    shrink("svhn", arrays, monkeypatch.setitem)
    assert_prepared(import_files("svhn", files, data_dir), arrays)


def test_import_refuses_what_is_not_the_dataset(
    files: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        import_files("svhn", files, data_dir)
    with pytest.raises(UsageError, match="unknown dataset 'mnist'"):
        import_files("mnist", files, data_dir)
    arrays = publish("svhn", files, "http://127.0.0.1:9", monkeypatch)
    (files / "test_32x32.mat").write_bytes(b"not what it was")
    with pytest.raises(UsageError, match=r"test_32x32\.mat' is corrupt: expected MD5"):
        import_files("svhn", files, data_dir)
    (files / "test_32x32.mat").unlink()
    with pytest.raises(UsageError, match=r"needs train_32x32\.mat and test_32x32\.mat, or train_i"):
        import_files("svhn", files, data_dir)
    shutil.rmtree(files)
    write_folder(arrays, files)
    entry = published.PUBLISHED["svhn"]
    monkeypatch.setitem(published.PUBLISHED, "svhn", entry._replace(checksum="0" * 64))
    with pytest.raises(UsageError, match=r"are not svhn: expected SHA-256 0+, found \w{64}"):
        import_files("svhn", files, data_dir)
    monkeypatch.setitem(published.PUBLISHED, "svhn", entry._replace(checksum=None))
    with pytest.raises(UsageError, match="checksum is not known: import train_32x32"):
        import_files("svhn", files, data_dir)
    assert not data_dir.exists()
