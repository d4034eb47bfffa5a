"""Files from the browser: checked before they are decoded, and kept nowhere else.

A client's file name is text for messages and for code; it is never part of a path here.
"""

from __future__ import annotations

import secrets
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from proxfield.core.common.records import Record
from proxfield.errors import InputError
from proxfield.io.files import display_name
from proxfield.io.images import import_pillow, is_array
from proxfield.studio.inputs import StudioInputs, read_files

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")
"""Formats of pictures; Pillow knows others, whose readers start programs."""
MAX_PIXELS = 2**24
"""Maximum number of pixels of a picture."""
EXPANSION = 8
"""An archive may hold so many times the bytes of the largest upload."""
LONGEST_NAME = 80


@dataclass(frozen=True)
class Upload:
    """One file from the browser.

    Attributes:
        name: What the client calls it.
        data: Its bytes.
    """

    name: str
    data: bytes

    @property
    def title(self) -> str:
        """The name for messages: the last part of a path, on one line, of limited length.

        Example:
            >>> Upload("../../etc/pass\\nwd.png", b"").title
            'pass\\\\nwd.png'
        """
        last = self.name.replace("\\", "/").rsplit("/", 1)[-1]
        return display_name(last)[-LONGEST_NAME:] or "upload"


def check_upload(upload: Upload, max_bytes: int) -> None:
    """Refuse a file that is too large, also once it is decoded, or that is of no known kind.

    Args:
        upload: The file.
        max_bytes: Maximum size of an upload.

    Raises:
        InputError: If it is refused.
    """
    data, name = upload.data, upload.title
    if len(data) > max_bytes:
        raise InputError(
            f"has {len(data)} bytes, expected at most {max_bytes} (--max-upload)", path=name
        )
    if is_array(data):
        _check_archive(data, name, EXPANSION * max_bytes)
        return
    pillow = import_pillow()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", pillow.DecompressionBombWarning)
        try:
            with pillow.open(BytesIO(data), formats=FORMATS) as picture:
                width, height = picture.size
                pages = getattr(picture, "n_frames", 1) if picture.format == "TIFF" else 1
        except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
            raise InputError(
                f"has too many pixels, expected at most {MAX_PIXELS}", path=name
            ) from None
        except (OSError, ValueError, SyntaxError, EOFError, KeyError, TypeError):
            what = "is no image that the studio reads" if data else "is empty"
            raise InputError(f"{what}, expected PNG, JPEG, TIFF, .npy or .npz", path=name) from None
    if pages > 1:
        raise InputError(f"has {pages} pages, expected a flat image", path=name)
    if width * height > MAX_PIXELS:
        raise InputError(f"has {width * height} pixels, expected at most {MAX_PIXELS}", path=name)


def _check_archive(data: bytes, name: str, most: int) -> None:
    """Refuse an .npz file that holds more than it seems to."""
    if not data.startswith(b"PK"):
        return
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            total = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise InputError(
            f"array file is damaged or cut short ({error}), expected a whole file", path=name
        ) from None
    if total > most:
        raise InputError(
            f"holds {total} bytes when decompressed, expected at most {most}", path=name
        )


@contextmanager
def _stored(upload: Upload | None, folder: Path) -> Iterator[Path | None]:
    """The file under a random name in the folder, as long as it is being read."""
    if upload is None:
        yield None
        return
    path = folder / secrets.token_hex(16)
    path.write_bytes(upload.data)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def read_uploads(
    image: Upload,
    unary: Upload,
    what: str,
    folder: Path,
    max_bytes: int,
    *,
    truth: Upload | None = None,
    names: tuple[str, ...] = (),
    build: Record | None = None,
) -> StudioInputs:
    """Inputs from files of the browser.

    Args:
        image: The image.
        unary: Probabilities, logits or labels.
        what: Which of these.
        folder: Where files may be written while they are read.
        max_bytes: Maximum size of an upload.
        truth: True labels.
        names: Names of the labels.
        build: As for `StudioInputs`.
    """
    for upload in (image, unary, truth):
        if upload is not None:
            check_upload(upload, max_bytes)
    with (
        _stored(image, folder) as image_path,
        _stored(unary, folder) as unary_path,
        _stored(truth, folder) as truth_path,
    ):
        titles = (image.title, unary.title, None if truth is None else truth.title)
        return read_files(
            image_path,
            unary_path,
            what,
            truth=truth_path,
            names=names,
            build=build,
            titles=titles,
        )
