"""Files of estimators and snakes: what comes back, and what is refused."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from test_crf import make_data

from proxfield import __version__
from proxfield.errors import InputError
from proxfield.learn import CRF, Graph, make_snakes, read_snakes
from proxfield.learn.estimator import write_arrays
from proxfield.learn.snakes import write_snakes


@pytest.fixture(scope="module")
def model() -> CRF:
    X, y = make_data(n_labels=3)
    return CRF(method="pseudo", pairwise="table", rule="sweep", class_weight=[1, 2, 1]).fit(X, y)


def test_a_model_comes_back(model: CRF, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    model.save(path)
    again = CRF.load(path)
    assert again.get_params() == model.get_params()
    assert list(again.parameters_) == list(model.parameters_)
    for name, value in model.parameters_.items():
        assert (again.parameters_[name] == value).all()
    X, _ = make_data(3, seed=5, n_labels=3)
    for a, b in zip(model.marginals(X), again.marginals(X), strict=True):
        assert (a == b).all()
    other = tmp_path / "again.npz"
    again.save(other)
    assert other.read_bytes() == path.read_bytes()


def test_a_file_is_plain_numpy_and_json(model: CRF, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    model.save(path)
    with np.load(path, allow_pickle=False) as archive:
        header = json.loads(archive["header"].tobytes())
        np.testing.assert_array_equal(archive["parameters/unary"], model.parameters_["unary"])
    assert header["version"] == 1 and header["holds"] == "CRF"
    assert header["library"] == __version__
    assert header["card"] == model.card()


def test_card(model: CRF) -> None:
    card = model.card()
    for text in (
        "# CRF",
        "data digest: ",
        "versions: proxfield",
        "| pairwise | (1, 3, 3) |",
        "- l2: 0.01",
    ):
        assert text in card
    X, y = make_data(n_labels=3)
    digests = []
    for change in (0.0, 0.0, 1e-9):
        moved = [Graph(g.nodes + change, g.edges) for g in X]
        digests.append(CRF(method="pseudo", max_iters=1).fit(moved, y).about_["data digest"])
    assert digests[0] == digests[1] != digests[2]


def rewritten(data: bytes, **changes: object) -> bytes:
    """A file with another header."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "header.npy":
                header = json.loads(np.load(io.BytesIO(content)).tobytes())
                header.update(changes)
                buffer = io.BytesIO()
                np.save(buffer, np.frombuffer(json.dumps(header).encode(), np.uint8))
                content = buffer.getvalue()
            target.writestr(name, content)
    return out.getvalue()


def test_other_files_are_refused(model: CRF, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    model.save(path)
    data = path.read_bytes()
    objects = io.BytesIO()
    np.savez(objects, header=np.array([{}], dtype=object))
    plain = io.BytesIO()
    np.savez(plain, a=np.zeros(3))
    cases = {
        "version 2 of the format, expected 1": rewritten(data, version=2),
        "holds 'DecisionTreeField', expected 'CRF'": rewritten(data, holds="DecisionTreeField"),
        "isn't a file of proxfield.learn": rewritten(data, format="other"),
        "the header is damaged": rewritten(data, params={"nonsense": 1}),
        "its arrays aren't those of the header": rewritten(data, arrays=["parameters/unary"]),
        "isn't an npz archive": b"not an archive",
        "is damaged or cut short": data[:-30],
        "has no header": plain.getvalue(),
        "damaged": objects.getvalue(),
    }
    for message, content in cases.items():
        path.write_bytes(content)
        with pytest.raises(InputError, match=message) as info:
            CRF.load(path)
        assert "\n" not in str(info.value) and "model.npz" in str(info.value)
    with pytest.raises(InputError, match=r"none\.npz"):
        CRF.load(tmp_path / "none.npz")


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bytes_never_go_unnoticed(model: CRF, tmp_path: Path, seed: int) -> None:
    path = tmp_path / "model.npz"
    model.save(path)
    data = bytearray(path.read_bytes())
    rng = np.random.default_rng(seed)
    data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    path.write_bytes(bytes(data))
    try:
        again = CRF.load(path)
    except InputError:
        return
    for name, value in model.parameters_.items():  # a part of the archive that says nothing
        assert (again.parameters_[name] == value).all()


def test_nothing_is_overwritten_by_a_model_that_cannot_be_saved(model: CRF, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(b"precious")
    X, y = make_data()
    unsaveable = CRF(loss=lambda q, targets: (0.0, 0.0 * q), max_iters=1).fit(X, y)
    with pytest.raises(InputError, match="can't be saved"):
        unsaveable.save(path)
    with pytest.raises(InputError, match="holds objects"):
        write_arrays(path, "x", {}, {"a": np.array([{}], dtype=object)})
    with pytest.raises(InputError):
        CRF.load(path)
    assert path.read_bytes() == b"precious"
    assert [p.name for p in tmp_path.iterdir()] == ["model.npz"]
    with pytest.raises(InputError, match="folder doesn't exist"):
        model.save(tmp_path / "none" / "model.npz")


def test_snakes_come_back(tmp_path: Path) -> None:
    path = tmp_path / "snakes.npz"
    parts = {"train": make_snakes(4, 1), "test": make_snakes(2, 2)}
    write_snakes(path, parts, 1)
    again = read_snakes(path)
    for name, both in parts.items():
        for one, other in zip(both, again[name], strict=True):
            assert all((a == b).all() for a, b in zip(one, other, strict=True))
    with pytest.raises(InputError, match="holds 'snakes', expected 'CRF'"):
        CRF.load(path)
