"""Decompression has a limit, and blanks take no memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxfield.cli.main import cli
from proxfield.errors import InputError
from proxfield.io import files
from proxfield.io.files import read_bytes
from proxfield.io.results import read_evidence, read_map
from proxfield.io.tokens import Tokens, squeeze
from proxfield.io.uai import read_model

MODEL = b"MARKOV\n1\n2\n1\n1 0\n2 1.0 3.0\n"
PACKERS = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


def peak_of(source: object, **options: int) -> tuple[int, str]:
    """Memory while a model is read, and what was wrong with it."""
    tracemalloc.start()
    try:
        read_model(source, **options)  # type: ignore[arg-type]
        message = ""
    except InputError as error:
        message = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak, message


@pytest.mark.parametrize(
    ("suffix", "blank"),
    [*((suffix, b" ") for suffix in PACKERS), *((".gz", b) for b in (b"\n", b"\r\n", b"\t "))],
)
def test_blanks_take_no_memory(suffix: str, blank: bytes) -> None:
    blanks = blank * ((40 << 20) // len(blank))
    packed = PACKERS[suffix](MODEL + blanks)
    del blanks
    peak, message = peak_of(io.BytesIO(packed))
    assert message == ""
    assert peak < 24 << 20


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_bomb_is_refused(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FREE_BYTES", 1 << 20)
    packed = PACKERS[suffix](MODEL + b" " * (40 << 20))
    peak, message = peak_of(io.BytesIO(packed))
    assert "unpacks to more than" in message
    assert "max_bytes" in message
    assert "--max-bytes" in message
    assert len(message) < 200
    assert peak < 24 << 20
    assert peak_of(io.BytesIO(packed), max_bytes=41 << 20)[1] == ""


@pytest.mark.parametrize("suffix", PACKERS)
def test_small_archives_may_hold_much_by_default(suffix: str) -> None:
    content = b"0 " * (2 << 20)
    assert read_bytes(io.BytesIO(PACKERS[suffix](content)))[0] == content


def test_ratio_counts_for_large_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FREE_BYTES", 1000)
    content = bytes(range(256)) * 40  # 10 KB in some 300 bytes
    packed = lzma.compress(content)
    monkeypatch.setattr(files, "MAX_RATIO", 2 * len(content) // len(packed))
    assert read_bytes(io.BytesIO(packed))[0] == content
    monkeypatch.setattr(files, "MAX_RATIO", len(content) // len(packed) // 2)
    with pytest.raises(InputError, match="unpacks to more than"):
        read_bytes(io.BytesIO(packed))


def test_the_limit_holds_for_plain_files_too(tmp_path: Path) -> None:
    path = tmp_path / "m.uai"
    path.write_bytes(MODEL)
    read_model(path, max_bytes=len(MODEL))
    with pytest.raises(InputError, match=r"m\.uai: the file holds more than .*max_bytes"):
        read_model(path, max_bytes=len(MODEL) - 1)
    with pytest.raises(InputError, match=r"max_bytes=-1, expected"):
        read_model(path, max_bytes=-1)


def test_evidence_and_results_have_the_limit_too() -> None:
    for read in (
        lambda: read_evidence(io.BytesIO(gzip.compress(b"1 0 1")), [2], max_bytes=3),
        lambda: read_map(io.BytesIO(bz2.compress(b"MAP 1 0")), max_bytes=3),
    ):
        with pytest.raises(InputError, match="more than 3 B"):
            read()


def test_xz_with_a_huge_dictionary_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 48 << 20}]
    packed = lzma.compress(MODEL, filters=filters)
    assert read_bytes(io.BytesIO(packed))[0] == MODEL
    monkeypatch.setattr(files, "XZ_MEMORY", 16 << 20)
    with pytest.raises(InputError, match=r"needs more than 16.0 MiB to decompress.*xz -9"):
        read_bytes(io.BytesIO(packed))


@pytest.mark.parametrize("suffix", PACKERS)
def test_archives_of_several_streams(suffix: str) -> None:
    packed = PACKERS[suffix](MODEL) + PACKERS[suffix](MODEL)
    assert read_bytes(io.BytesIO(packed))[0] == 2 * MODEL
    if suffix != ".bz2":
        padded = PACKERS[suffix](MODEL) + bytes(8) + PACKERS[suffix](MODEL) + bytes(4)
        assert read_bytes(io.BytesIO(padded))[0] == 2 * MODEL
    cut = packed[:-9]
    with pytest.raises(InputError, match="cut short"):
        read_bytes(io.BytesIO(cut))


class Trickle(io.BytesIO):
    """A pipe that gives a byte at a time."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(1)


@pytest.mark.parametrize("suffix", ["", *PACKERS])
def test_pipes_that_give_a_byte_at_a_time(suffix: str) -> None:
    packed = PACKERS[suffix](MODEL) if suffix else MODEL
    assert read_bytes(Trickle(packed))[0] == MODEL
    assert read_model(Trickle(packed)).n_vars == 1


def test_standard_input_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(MODEL + b" " * 5000)
    for limit, ok in ((6000, True), (4000, False)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed)))
        if ok:
            assert read_model("-", max_bytes=limit).n_vars == 1
        else:
            with pytest.raises(InputError, match=r"<stdin>: the archive unpacks to more than 3\.9"):
                read_model("-", max_bytes=limit)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 7, 20, 100, 10**6])
def test_lines_count_whatever_was_left_out(end: bytes, size: int) -> None:
    text = b"MAP" + 50 * (b"  " + end) + b"7" + 90 * end + 40 * b" " + b"8 " + 30 * end + b"x"
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    squeezed = squeeze(pieces)
    if size == 20:
        assert len(squeezed.data) < len(text) / 2
    for piece in (text, squeezed):
        with pytest.raises(InputError) as caught:
            Tokens(piece, "m", headers=("MAP",))
        assert caught.value.line == 171
        assert "'x' isn't a number" in caught.value.message


def test_ordinary_text_stays_as_it_is() -> None:
    text = b"\xef\xbb\xbf" + MODEL * 100
    assert squeeze([text[:50], text[50:]]).data == MODEL * 100


def test_binary_data_is_refused_before_it_is_read_to_its_end() -> None:
    class Endless(io.RawIOBase):
        reads = 0

        def read(self, size: int = -1) -> bytes:
            self.reads += 1
            assert self.reads < 100
            return bytes(size)

    with pytest.raises(InputError, match="binary data"):
        read_model(Endless())  # type: ignore[arg-type]


def test_command_line(tmp_path: Path) -> None:
    path = tmp_path / "m.uai.gz"
    path.write_bytes(gzip.compress(MODEL + b" " * 3000))
    run = CliRunner().invoke
    good = run(cli, ["info", str(path), "--max-bytes", "4K"])
    assert good.exit_code == 0, good.output
    bad = run(cli, ["info", str(path), "--max-bytes", "2k"])
    assert bad.exit_code != 0
    assert "more than 2.0 KiB" in (bad.output + str(bad.exception or ""))
    wrong = run(cli, ["info", str(path), "--max-bytes", "much"])
    assert wrong.exit_code == 2
    assert "expected for example 500M" in wrong.output
