"""CIFAR-10's prepared file: what is accepted, what is refused and with which words, and the real data set."""

from __future__ import annotations

import hashlib
import io
import pickle
import socket
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from pipemare_exp.data import cifar10
from pipemare_exp.errors import UserError


def synthetic(train: int = 40, test: int = 20) -> dict[str, np.ndarray]:
    """SYNTHETIC stand-in for CIFAR-10: random pixels with the shapes and types of the real thing."""
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 256, (train, 32, 32, 3), dtype=np.uint8),
        "y_train": rng.integers(0, 10, train, dtype=np.uint8),
        "x_test": rng.integers(0, 256, (test, 32, 32, 3), dtype=np.uint8),
        "y_test": rng.integers(0, 10, test, dtype=np.uint8),
    }


def test_a_good_file_is_read_back(tmp_path):
    arrays = synthetic()
    np.savez(tmp_path / "cifar10.npz", **arrays)
    loaded = cifar10.load(tmp_path)
    for name, array in arrays.items():
        assert np.array_equal(getattr(loaded, name), array)
    assert loaded.y_train.dtype == np.int64


def test_no_file_says_what_to_run_and_what_to_put_where(tmp_path):
    with pytest.raises(UserError) as caught:
        cifar10.load(tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "cifar10.npz") in message
    assert f"pipemare data prepare cifar10 --data {tmp_path}" in message
    for words in ("x_train (50000, 32, 32, 3)", "y_test (10000,)", "--data", "data.root=", "PIPEMARE_DATA"):
        assert words in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x_train": None}, "has no array x_train"),
        ({"y_test": None}, "has no array y_test"),
        ({"x_train": np.zeros((40, 3, 32, 32), np.uint8)}, r"x_train as uint8 \(40, 3, 32, 32\)"),
        ({"x_test": np.zeros((20, 32, 32, 3), np.float32)}, r"x_test as float32"),
        ({"y_train": np.zeros(39, np.uint8)}, r"y_train as uint8 \(39,\) instead of integers \(40,\)"),
        ({"y_train": np.full(40, 10)}, "labels from 10 to 10"),
        (
            {"x_test": np.zeros((0, 32, 32, 3), np.uint8), "y_test": np.zeros(0, np.uint8)},
            r"\(0, 32, 32, 3\)",
        ),
        ({"x_train": np.array([{"a": 1}], dtype=object)}, "cannot be read"),
    ],
)
def test_wrong_contents_are_named(tmp_path, change, words):
    arrays = {name: a for name, a in (synthetic() | change).items() if a is not None}
    np.savez(tmp_path / "cifar10.npz", **arrays)
    with pytest.raises(UserError, match=words) as caught:
        cifar10.load(tmp_path)
    assert str(tmp_path / "cifar10.npz") in str(caught.value)
    assert "pipemare data prepare cifar10" in str(caught.value)


@pytest.mark.parametrize("compressed", [False, True])
def test_truncated_and_damaged_files_are_named(tmp_path, compressed):
    path = tmp_path / "cifar10.npz"
    (np.savez_compressed if compressed else np.savez)(path, **synthetic())
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for bad in (b"", whole[: len(whole) // 2], whole[:-30], bytes(flipped), b"<html>404</html>"):
        path.write_bytes(bad)
        with pytest.raises(UserError, match="cifar10.npz cannot be read") as caught:
            cifar10.load(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_single_array_is_not_an_archive(tmp_path):
    with open(tmp_path / "cifar10.npz", "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(UserError, match="one array, not an .npz archive"):
        cifar10.load(tmp_path)


def archive(per_batch: int) -> tuple[bytes, dict[str, str]]:
    """A SYNTHETIC cifar-10-python.tar.gz in the real one's layout, and the MD5s of the batches in it."""
    rng = np.random.default_rng(1)
    files = {}
    for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]:
        data = rng.integers(0, 256, (per_batch, 3072), dtype=np.uint8)
        files[name] = pickle.dumps({"data": data, "labels": rng.integers(0, 10, per_batch).tolist()})
    files["batches.meta"] = pickle.dumps({"label_names": [str(k) for k in range(10)]})
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue(), {name: hashlib.md5(content).hexdigest() for name, content in files.items()}


@pytest.fixture
def small_archive(monkeypatch) -> bytes:
    """A small archive that torchvision takes for CIFAR-10, because its checksums are those it expects."""
    from torchvision.datasets import CIFAR10

    packed, sums = archive(4)
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(packed).hexdigest())
    monkeypatch.setattr(CIFAR10, "train_list", [[f"data_batch_{k}", sums[f"data_batch_{k}"]] for k in range(1, 6)])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": sums["batches.meta"]})
    return packed


@pytest.fixture
def server(tmp_path):
    """The address of a web server on this machine, and the folder that it serves."""
    folder = tmp_path / "server"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder)) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_address[1]}", folder
        http.shutdown()


def test_prepare_downloads_converts_once_and_cleans_up(tmp_path, small_archive, server, monkeypatch):
    from torchvision.datasets import CIFAR10

    address, folder = server
    source = folder / cifar10.ARCHIVE
    source.write_bytes(small_archive)
    monkeypatch.setattr(CIFAR10, "url", f"{address}/{cifar10.ARCHIVE}")
    root = tmp_path / "data"
    assert "20 train and 4 test" in cifar10.prepare(root)
    assert [p.name for p in root.iterdir()] == ["cifar10.npz"]

    loaded = cifar10.load(root)
    with tarfile.open(source) as tar:
        batch = pickle.load(tar.extractfile("cifar-10-batches-py/data_batch_2"))
    assert np.array_equal(loaded.x_train[4:8].transpose(0, 3, 1, 2).reshape(4, -1), batch["data"])
    assert loaded.y_train[4:8].tolist() == batch["labels"]

    source.unlink()  # a second time needs neither network nor archive
    assert "there already" in cifar10.prepare(root)


def test_prepare_from_an_archive_put_there_by_hand(tmp_path, small_archive):
    (tmp_path / cifar10.ARCHIVE).write_bytes(small_archive)
    cifar10.prepare(tmp_path, download=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == [cifar10.ARCHIVE, "cifar10.npz"]
    assert len(cifar10.load(tmp_path).x_train) == 20


def test_prepare_refuses_a_damaged_archive(tmp_path, small_archive):
    (tmp_path / cifar10.ARCHIVE).write_bytes(small_archive[:-100])
    with pytest.raises(UserError, match="tar.gz is damaged"):
        cifar10.prepare(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [cifar10.ARCHIVE]


def test_prepare_refuses_a_damaged_download(tmp_path, small_archive, server, monkeypatch):
    from torchvision.datasets import CIFAR10

    address, folder = server
    (folder / cifar10.ARCHIVE).write_bytes(small_archive[:-100])
    monkeypatch.setattr(CIFAR10, "url", f"{address}/{cifar10.ARCHIVE}")
    with pytest.raises(UserError, match="could not get CIFAR-10 .*corrupted"):
        cifar10.prepare(tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_prepare_without_network_says_what_to_put_where(tmp_path, small_archive, monkeypatch):
    from torchvision.datasets import CIFAR10

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # a port that nobody listens on
        port = free.getsockname()[1]
    monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{port}/{cifar10.ARCHIVE}")
    root = tmp_path / "data"
    with pytest.raises(UserError, match=f"could not get CIFAR-10 .*put .*tar.gz .* into {root}"):
        cifar10.prepare(root)
    assert list(root.iterdir()) == []
    with pytest.raises(UserError, match="downloading is off"):
        cifar10.prepare(root, download=False)


def test_the_real_cifar10(data_root):
    """Class counts and channel statistics as everybody quotes them: 0.4914, 0.4822, ..."""
    from pipemare_exp.tasks.image_classification import channel_statistics

    if not (data_root / cifar10.FILE).is_file():
        pytest.skip(f"no {cifar10.FILE} in PIPEMARE_DATA")
    arrays = cifar10.load(data_root)
    assert arrays.x_train.shape == (50_000, 32, 32, 3) and arrays.x_test.shape == (10_000, 32, 32, 3)
    assert np.bincount(arrays.y_train).tolist() == [5000] * 10
    assert np.bincount(arrays.y_test).tolist() == [1000] * 10
    mean, std = channel_statistics(arrays.x_train)
    assert mean / 255 == pytest.approx([0.49139968, 0.48215841, 0.44653091], abs=1e-7)
    assert std / 255 == pytest.approx([0.24703223, 0.24348513, 0.26158784], abs=1e-7)
