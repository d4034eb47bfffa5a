"""Numpy's files whose bytes are damaged: `InputError` with the file's name, or whole arrays."""

from __future__ import annotations

import io
import tokenize
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from helpers import repulsive_grid
from proxfield.bench.peers.problems import read_scenes
from proxfield.cli.refine_files import PROCESS_BYTES, Pair, bytes_needed
from proxfield.io import images
from proxfield.io.files import naming_damage
from proxfield.io.windows import map_array, open_sliced, stored_shape
from proxfield.learn.estimator import read_arrays, write_arrays

MUTANTS = 300
SYNTAX = b"(){}[],:'\"\\\n\0#0123456789eEjL_.-<>|OVUSmM\xff"


def npy_bytes(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=version)
    return out.getvalue()


def unclosed() -> bytes:
    """A header whose shape has lost its bracket."""
    return npy_bytes(np.zeros((4, 5, 3))).replace(b"3), ", b"3,  ")


def mutants(data: bytes, reach: int, seed: int) -> Iterator[bytes]:
    """Copies of a file with a few bytes of its beginning flipped, replaced, lost or added."""
    rng = np.random.default_rng(seed)
    for _ in range(MUTANTS):
        out = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(0, min(reach, len(out))))
            kind = rng.integers(0, 6)
            if kind == 0:
                out[at] ^= 1 << int(rng.integers(0, 8))
            elif kind == 1:
                out[at] = SYNTAX[int(rng.integers(len(SYNTAX)))]
            elif kind == 2:
                del out[at : at + int(rng.integers(1, 9))]
            elif kind == 3:
                digits = rng.integers(48, 58, size=int(rng.integers(1, 25)))
                out[at:at] = bytes(digits.astype(np.uint8))
            elif kind == 4:
                out[at:at] = bytes([SYNTAX[int(rng.integers(len(SYNTAX)))]]) * int(
                    rng.integers(1, 40)
                )
            else:
                del out[int(rng.integers(1, len(out))) :]
        yield bytes(out)


def read_window(path: Path) -> np.ndarray:
    there = open_sliced(path)
    return there.read(tuple(slice(0, 2) for _ in there.shape))


NPY_READERS: dict[str, Callable[[Path], Any]] = {
    "image": images.read_image,
    "probabilities": images.read_probabilities,
    "logits": images.read_logits,
    "labels": images.read_labels,
    "mapped": map_array,
    "window": read_window,
    "shape": stored_shape,
}
NPZ_READERS: dict[str, Callable[[Path], Any]] = {
    "probabilities": images.read_probabilities,
    "logits": images.read_logits,
    "shape": stored_shape,
    "scenes": lambda path: read_scenes(path.parent),
    "learn": lambda path: read_arrays(path, "anything"),
    "field": pf.Field.load,
}


def refusals(read: Callable[[Path], Any], path: Path, contents: Iterator[bytes]) -> int:
    """How many files are refused; whatever but `InputError` is raised leaves."""
    count = 0
    for content in contents:
        path.write_bytes(content)
        try:
            read(path)
        except pf.InputError as error:
            count += 1
            assert path.name in str(error)
            assert "\n" not in str(error)
        except pf.MemoryLimitError:  # an absurd size in the directory of an archive
            count += 1
    return count


@pytest.mark.parametrize("reader", NPY_READERS)
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.filterwarnings("ignore")  # of Python's parser, on odd literals
def test_damaged_npy_headers_are_refused_by_name(
    tmp_path: Path, reader: str, version: tuple[int, int]
) -> None:
    values = np.random.default_rng(0).random((4, 5, 3))
    data = npy_bytes(values, version)
    some = mutants(data, len(data) - values.nbytes, seed=version[0])
    assert refusals(NPY_READERS[reader], tmp_path / "broken.npy", some) > MUTANTS // 2


def valid_archive(reader: str) -> bytes:
    out = io.BytesIO()
    if reader == "field":
        repulsive_grid(3, 3).save(out_path := Path("field.npz"))
        return out_path.read_bytes()
    if reader == "learn":
        write_arrays(path := Path("learn.npz"), "anything", {}, {"a": np.arange(9)})
        return path.read_bytes()
    p = np.full((4, 5, 3), 1 / 3, dtype=np.float32)
    scene = {"image": np.zeros((4, 5, 3), np.uint8), "truth": np.zeros((4, 5), np.uint8)}
    np.savez(out, probabilities=p, **scene)
    return out.getvalue()


@pytest.mark.parametrize("reader", NPZ_READERS)
@pytest.mark.filterwarnings("ignore")
def test_damaged_npz_archives_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    monkeypatch.chdir(tmp_path)
    data = valid_archive(reader)
    (tmp_path / "field.npz").unlink(missing_ok=True)
    (tmp_path / "learn.npz").unlink(missing_ok=True)
    some = mutants(data, len(data), seed=4)
    assert refusals(NPZ_READERS[reader], tmp_path / "broken.npz", some) > MUTANTS // 4


@pytest.mark.parametrize("reader", NPZ_READERS)
@pytest.mark.filterwarnings("ignore")
def test_damaged_members_with_right_checksums_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """Checksums of an archive say nothing of what was damaged before it was packed."""
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile(io.BytesIO(valid_archive(reader))) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (tmp_path / "field.npz").unlink(missing_ok=True)
    (tmp_path / "learn.npz").unlink(missing_ok=True)
    first = next(iter(members))

    def packed() -> Iterator[bytes]:
        for content in mutants(members[first], 100, seed=5):
            out = io.BytesIO()
            with zipfile.ZipFile(out, "w") as archive:
                for name, member in {**members, first: content}.items():
                    archive.writestr(name, member)
            yield out.getvalue()

    assert refusals(NPZ_READERS[reader], tmp_path / "broken.npz", packed()) > MUTANTS // 2


def test_an_unclosed_bracket_is_damage(tmp_path: Path) -> None:
    data = unclosed()
    with pytest.raises(tokenize.TokenError):  # what numpy itself makes of it
        np.load(io.BytesIO(data))
    (tmp_path / "x.npy").write_bytes(data)
    for read in NPY_READERS.values():
        with pytest.raises(pf.InputError, match=r"x\.npy: array file is damaged or cut short"):
            read(tmp_path / "x.npy")


@pytest.mark.parametrize("shape", [(10**6, 10**6), (2**62, 3), (10**30,), (-3, 5)])
def test_absurd_shapes_are_damage(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "x.npy"
    out = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, header)
    path.write_bytes(out.getvalue() + bytes(80))
    for read in NPY_READERS.values():
        with pytest.raises(pf.InputError, match=r"x\.npy: array"):
            read(path)
    # it doesn't decide how many images are refined at once
    assert bytes_needed(Pair(path, path, ()), None) == PROCESS_BYTES


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError("deep"), tokenize.TokenError("x", (1, 2)), OSError(5)]
)
def test_whatever_is_raised_becomes_an_input_error(error: Exception) -> None:
    with pytest.raises(pf.InputError, match=r"^x\.npy: array"), naming_damage("x.npy"):
        raise error


@pytest.mark.parametrize("kind", [PermissionError, IsADirectoryError])
def test_a_file_that_cannot_be_read_is_no_damage(kind: type[OSError]) -> None:
    with pytest.raises(pf.InputError) as caught, naming_damage("x.npy"):
        raise kind(13, "No access", "x.npy")
    assert str(caught.value) == "x.npy: can't read (No access), expected a readable file"


@pytest.mark.parametrize("read", [map_array, stored_shape])
def test_a_folder_is_no_damaged_array(tmp_path: Path, read: Any) -> None:
    with pytest.raises(pf.InputError, match=r"can't read \(.*\), expected a readable file$"):
        read(tmp_path)


def test_ctrl_c_is_no_damage() -> None:
    with pytest.raises(KeyboardInterrupt), naming_damage("x.npy"):
        raise KeyboardInterrupt
