"""Reading, decompressing and replacing files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from proxfield.errors import InputError
from proxfield.io import files
from proxfield.io.files import atomic_write, display_name, read_bytes

TEXT = b"MARKOV\n1\n2\n1\n1 0\n2 0.25 0.75\n"
PACKERS = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
POSIX = pytest.mark.skipif(os.name != "posix", reason="needs POSIX devices and modes")


def one_line(error: pytest.ExceptionInfo[InputError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("named", [True, False])
def test_archives_are_recognized_by_content(tmp_path: Path, suffix: str, named: bool) -> None:
    path = tmp_path / ("m.uai" + suffix if named else "m.uai")
    path.write_bytes(PACKERS[suffix](TEXT))
    assert read_bytes(path) == (TEXT, str(path))


def test_plain_content_with_an_archive_name_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.uai.gz"
    path.write_bytes(TEXT)
    assert read_bytes(str(path))[0] == TEXT


@pytest.mark.parametrize("suffix", PACKERS)
def test_every_truncation_of_an_archive_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / ("m.uai" + suffix)
    whole = PACKERS[suffix](TEXT)
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError, match="cut short") as error:
            read_bytes(path)
        assert one_line(error).startswith(f"{path}: ")


@pytest.mark.parametrize("suffix", PACKERS)
def test_corrupt_archives_are_refused(suffix: str) -> None:
    whole = bytearray(PACKERS[suffix](TEXT * 9))
    whole[len(whole) // 2] ^= 0xFF
    whole[-5] ^= 0xFF
    with pytest.raises(InputError, match="corrupt"):
        read_bytes(io.BytesIO(bytes(whole)))


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file.*check the spelling") as error:
        read_bytes(tmp_path / "absent.uai")
    assert "absent.uai" in one_line(error)
    with pytest.raises(InputError, match="is a directory, expected a file"):
        read_bytes(tmp_path)
    with pytest.raises(InputError, match="can't read"):
        read_bytes("a\0b")


@POSIX
def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path, mode: str) -> bytes:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "m.uai"
    path.write_bytes(TEXT)
    monkeypatch.setattr(Path, "open", denied)  # root may read everything, so pretend
    with pytest.raises(InputError, match=r"permission denied.*chmod"):
        read_bytes(path)


def test_file_objects_and_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_bytes(io.BytesIO(gzip.compress(TEXT))) == (TEXT, "<file>")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT)))
    assert read_bytes("-") == (TEXT, "<stdin>")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        read_bytes("-")


def test_wrong_kinds_of_source() -> None:
    closed = io.BytesIO(TEXT)
    closed.close()
    with pytest.raises(InputError, match="closed file"):
        read_bytes(closed)
    with pytest.raises(InputError, match="expected a path"):
        read_bytes(3)  # type: ignore[arg-type]


def test_names_in_messages_are_one_line() -> None:
    assert display_name("a\nb") == "a\\nb"
    assert display_name(Path("é.uai")) == "é.uai"
    with pytest.raises(InputError) as error:
        read_bytes("no\nsuch\udcff")
    one_line(error)
    str(error.value).encode("utf-8")


@pytest.mark.parametrize("suffix", ["", *PACKERS])
def test_write_and_read_back(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / ("m.uai" + suffix)
    atomic_write(path, TEXT.decode())
    first = path.read_bytes()
    assert (first == TEXT) == (suffix == "")
    assert read_bytes(path)[0] == TEXT
    if suffix == ".gz":
        assert first[4:8] == bytes(4)  # no time of day
    atomic_write(str(path), TEXT)
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@POSIX
def test_mode_follows_the_umask_and_the_old_file(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        atomic_write(tmp_path / "new", b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o604)
    atomic_write(tmp_path / "new", b"y")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o604


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["replace", "fsync"])
def test_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, where: str
) -> None:
    def fail(*_: object) -> None:
        raise failure

    path = tmp_path / "m.uai"
    path.write_bytes(b"old")
    if where == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    else:
        monkeypatch.setattr(files.os, "fsync", fail)
    expected = InputError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as error:
        atomic_write(path, b"new")
    if expected is InputError:
        assert "No space left" in str(error.value)
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["m.uai"]


def test_targets_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="folder doesn't exist") as error:
        atomic_write(tmp_path / "a" / "m.uai", b"x")
    one_line(error)
    with pytest.raises(InputError, match="is a directory"):
        atomic_write(tmp_path, b"x")
    (tmp_path / "m").write_bytes(b"old")
    with pytest.raises(InputError, match="can't write"):
        atomic_write(tmp_path / "m" / "below", b"x")
    monkeypatch.setattr(files.os, "access", lambda *_: False)
    with pytest.raises(InputError, match="permission denied"):
        atomic_write(tmp_path / "m", b"x")
    assert (tmp_path / "m").read_bytes() == b"old"


@POSIX
def test_links_stay_links(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    atomic_write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


@POSIX
def test_special_files_are_written_not_replaced(tmp_path: Path) -> None:
    # A pipe of our own stands for /dev/null and the like: should this ever go wrong in a
    # container that runs as root, a real device would be gone.
    pipe = tmp_path / "pipe.gz"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        atomic_write(pipe, TEXT)
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert gzip.decompress(os.read(reader, 1 << 16)) == TEXT
    finally:
        os.close(reader)
    assert [p.name for p in tmp_path.iterdir()] == [pipe.name]


@POSIX
@pytest.mark.parametrize("target", ["/dev/stdout", "/dev/fd/1", "-"])
@pytest.mark.parametrize("to_file", [True, False])
def test_standard_output(tmp_path: Path, target: str, to_file: bool) -> None:
    # Redirected to a file, /dev/stdout is a regular file: it must be neither cut nor replaced.
    code = (
        "from proxfield.io.files import atomic_write\n"
        f"print('before'); atomic_write({target!r}, 'model\\n'); print('after')"
    )
    command = [sys.executable, "-c", code]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    env.pop("PYTHONUNBUFFERED", None)  # what was printed before must be flushed first
    if to_file:
        with (tmp_path / "out").open("wb") as out:
            subprocess.run(command, stdout=out, check=True, env=env)
        result = (tmp_path / "out").read_bytes()
    else:
        result = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=env).stdout
    assert result == b"before\nmodel\nafter\n"
    assert Path("/dev/stdout").is_symlink()
