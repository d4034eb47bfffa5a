"""Who may talk to the studio, and what it accepts: hosts, origins, sizes, names, bombs."""

from __future__ import annotations

import asyncio
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from studio_cases import write_files

from proxfield.errors import InputError
from proxfield.studio import inputs as uploads
from proxfield.studio.inputs import Upload, check_upload, read_uploads
from proxfield.studio.server import OVERHEAD, Guard, Pictures, allowed_hosts, bind

LIMIT = 2**20
LOCAL = allowed_hosts("127.0.0.1")


def ask(
    headers: dict[str, str],
    *,
    kind: str = "http",
    body: tuple[bytes, ...] = (b"",),
    hosts: tuple[str, ...] | None = LOCAL,
) -> tuple[list[dict[str, Any]], int]:
    """What a guard sends, and how many bytes reached the application."""
    sent: list[dict[str, Any]] = []
    reached = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal reached
        if scope["type"] == "http":
            more = True
            while more:
                message = await receive()
                reached += len(message["body"])
                more = message["more_body"]
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})
        else:
            await send({"type": "websocket.accept"})

    parts = iter(enumerate(body, 1))

    async def receive() -> dict[str, Any]:
        number, part = next(parts)
        return {"type": "http.request", "body": part, "more_body": number < len(body)}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    raw = [(k.lower().encode(), v.encode()) for k, v in headers.items()]
    asyncio.run(Guard(app, hosts, LIMIT)({"type": kind, "headers": raw}, receive, send))
    return sent, reached


HOST = {"Host": "127.0.0.1:8123"}


@pytest.mark.parametrize("host", ["127.0.0.1:8123", "localhost:8123", "LOCALHOST", "[::1]:8123"])
def test_own_names_are_served(host: str) -> None:
    sent, _ = ask({"Host": host})
    assert sent[0]["status"] == 200
    assert (b"x-frame-options", b"DENY") in sent[0]["headers"]
    assert ask({"Host": host}, kind="websocket")[0] == [{"type": "websocket.accept"}]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example:8123"},  # a name that was made to stand for 127.0.0.1
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "evil.example@127.0.0.1:8123:1"},
        {},
        {**HOST, "Origin": "http://evil.example"},
        {**HOST, "Origin": "null"},
        {**HOST, "Origin": "http://127.0.0.1:9999"},  # another program on this machine
        {**HOST, "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_others_are_refused(headers: dict[str, str]) -> None:
    sent, _ = ask(headers)
    assert sent[0]["status"] in (400, 403) and b"ok" not in sent[1]["body"]
    sent, _ = ask(headers, kind="websocket")
    assert [m["type"] for m in sent] == ["websocket.close"]


def test_the_page_itself_may_post_and_connect() -> None:
    headers = {**HOST, "Origin": "http://127.0.0.1:8123"}
    assert ask(headers, body=(b"abc",))[1] == 3
    assert ask(headers, kind="websocket")[0] == [{"type": "websocket.accept"}]


def test_other_hosts_only_if_they_are_the_studios() -> None:
    assert allowed_hosts("0.0.0.0") is None
    hosts = allowed_hosts("192.168.1.7")
    assert ask({"Host": "192.168.1.7:80"}, hosts=hosts)[0][0]["status"] == 200
    assert ask({"Host": "evil.example"}, hosts=hosts)[0][0]["status"] == 403
    cross = {"Host": "studio.example", "Origin": "http://evil.example"}
    assert ask(cross, hosts=None)[0][0]["status"] == 403


def test_requests_are_limited_in_size() -> None:
    sent, reached = ask({**HOST, "Content-Length": str(LIMIT + OVERHEAD + 1)})
    assert sent[0]["status"] == 413 and reached == 0
    piece = b"x" * (LIMIT // 2)
    sent, reached = ask(HOST, body=(piece,) * 6)  # without a length, or with a false one
    assert sent[0]["status"] == 413 and reached <= LIMIT + OVERHEAD
    assert ask({**HOST, "Content-Length": "-1"})[0][0]["status"] == 413


# ---- uploads ----


def png(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("L", (width, height)).save(out, format="PNG")
    return out.getvalue()


def refused(data: bytes, match: str, name: str = "x.png") -> None:
    with pytest.raises(InputError, match=match) as caught:
        check_upload(Upload(name, data), LIMIT)
    assert str(caught.value).startswith(f"{name}: ")
    assert "\n" not in str(caught.value)


def test_uploads_are_limited_in_size_and_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(b"\x93NUMPY" + bytes(LIMIT), "expected at most 1048576")
    monkeypatch.setattr(uploads, "MAX_PIXELS", 10_000)
    check_upload(Upload("x.png", png(100, 100)), LIMIT)
    refused(png(101, 100), "has 10100 pixels, expected at most 10000")


@pytest.mark.parametrize("most", [1000, 7000])
def test_what_pillow_takes_for_a_bomb_is_an_error(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)  # Pillow raises above twice as many
    refused(png(100, 100), "too many pixels")


def test_archives_are_measured_before_they_are_read() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(9 * LIMIT))
    refused(out.getvalue(), "holds 9437184 bytes when decompressed", "x.npz")
    refused(out.getvalue()[:-9], "damaged or cut short", "x.npz")


def test_other_kinds_are_refused() -> None:
    import gzip

    for data in (b"", b"%!PS-Adobe-3.0 EPSF", gzip.compress(png(3, 3)), b"\x00" * 64, b"GIF89a"):
        refused(data, "expected PNG, JPEG, TIFF, .npy or .npz")
    out = io.BytesIO()
    page = Image.new("L", (4, 4))
    page.save(out, format="TIFF", save_all=True, append_images=[page])
    refused(out.getvalue(), "has 2 pages", "x.tif")


@pytest.mark.parametrize(
    "name", ["../../evil.png", "/etc/evil.png", "C:\\temp\\evil.png", "..\\evil.png"]
)
def test_names_of_the_client_are_no_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    paths = write_files(tmp_path)
    folder = tmp_path / "own" / "deep"
    folder.mkdir(parents=True)
    written: list[Path] = []
    write = Path.write_bytes

    def noted(self: Path, data: bytes) -> int:
        written.append(self)
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", noted)
    image = Upload(name, paths["image"].read_bytes())
    unary = Upload(name + ".npy", paths["probs"].read_bytes())
    inputs = read_uploads({"image": image, "unary": unary}, "probabilities", folder, LIMIT)
    assert inputs.image_name == "evil.png" and inputs.unary_name == "evil.png.npy"
    assert len(written) == 2 and all(path.parent == folder for path in written)
    assert not any("evil" in path.name for path in written)
    assert list(folder.iterdir()) == []  # nothing stays


def test_a_damaged_upload_is_named_and_removed(tmp_path: Path) -> None:
    paths = write_files(tmp_path)
    folder = tmp_path / "own"
    folder.mkdir()
    data = paths["image"].read_bytes()
    image = Upload("photo.png", data[: len(data) // 2])
    unary = Upload("p.npy", paths["probs"].read_bytes())
    with pytest.raises(InputError, match=r"^photo\.png: image is damaged or cut short"):
        read_uploads({"image": image, "unary": unary}, "probabilities", folder, LIMIT)
    objects = io.BytesIO()
    np.save(objects, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"^p\.npy: array file is damaged"):
        files = {"image": Upload("photo.png", data), "unary": Upload("p.npy", objects.getvalue())}
        read_uploads(files, "probabilities", folder, LIMIT)
    assert list(folder.iterdir()) == []


def test_a_port_in_use_is_named() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} is in use, expected a free one"):
            bind("127.0.0.1", port)
    with pytest.raises(InputError, match=r"can't listen on 203\.0\.113\.9:0"):
        bind("203.0.113.9", 0)


def test_pictures_belong_to_one_page() -> None:
    pictures = Pictures()
    first, second = object(), object()
    addresses = [pictures.put(first, "result", bytes([k]), "image/png") for k in range(6)]
    other = pictures.put(second, "result", b"x", "image/png")
    tokens = [a.removeprefix("/picture/") for a in addresses]
    assert pictures.get(tokens[0]) is None and pictures.get(tokens[5]) == (b"\x05", "image/png")
    pictures.drop(first)
    assert pictures.get(tokens[5]) is None
    assert pictures.get(other.removeprefix("/picture/")) == (b"x", "image/png")
