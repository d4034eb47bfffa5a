"""Files on other machines (``s3://``, ``gs://``, ``memory://``, …), through fsspec.

`RemotePath` has those methods of `pathlib.Path` that commands use, so that they need not know where
a file is. Objects are read and written whole; a file that is written appears whole or not at all.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, BinaryIO, TypeAlias

from proxfield.core.common.extras import import_extra
from proxfield.errors import InputError, MissingDependencyError, reason

OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "memory")
"""Protocols whose files appear whole in any case; elsewhere they are renamed when complete."""

_URL = re.compile(r"([a-z][a-z0-9+.\-]+)://", re.ASCII)


def is_remote(path: object) -> bool:
    """Whether a name is a URL.

    Example:
        >>> is_remote("s3://bucket/a.png"), is_remote("a.png"), is_remote(Path("s3://bucket/a"))
        (True, False, False)
    """
    if isinstance(path, RemotePath):
        return True
    return isinstance(path, str) and _URL.match(path) is not None


@dataclass(frozen=True, order=True)
class RemotePath(os.PathLike[str]):
    """A URL, used like a `pathlib.Path`.

    Example:
        >>> path = RemotePath("s3://bucket/photos") / "a.png"
        >>> str(path), path.name, str(path.with_name("b.npy"))
        ('s3://bucket/photos/a.png', 'a.png', 's3://bucket/photos/b.npy')
    """

    url: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", self.url.rstrip("/") if self._tail else self.url)

    def __str__(self) -> str:
        return self.url

    def __fspath__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.url.rstrip('/')}/{name}")

    @property
    def _tail(self) -> PurePosixPath:
        return PurePosixPath(self.url.partition("://")[2])

    @property
    def name(self) -> str:
        """The last part."""
        return self._tail.name

    def with_name(self, name: str) -> RemotePath:
        """The file of another name beside this one."""
        return RemotePath(f"{self.url.rpartition('/')[0]}/{name}")

    def is_absolute(self) -> bool:
        """A URL doesn't depend on the current folder."""
        return True

    @property
    def _place(self) -> tuple[Any, str]:
        """The file system, of which fsspec keeps one, and the path there."""
        fsspec = import_extra("fsspec", "remote paths need fsspec", "cluster")
        try:
            system, path = fsspec.core.url_to_fs(self.url)
        except ImportError as error:  # the package of this protocol
            raise MissingDependencyError(f"{self.url}: {error}") from None
        except Exception as error:
            what = f"can't be reached ({reason(error)}), expected a URL that fsspec knows"
            raise InputError(what, path=self.url) from None
        return system, str(path)

    def _ask(self, what: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the file system; other errors than a missing file become one line."""
        system, path = self._place
        try:
            return getattr(system, what)(path, *arguments, **options)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise InputError(
                f"can't be reached ({reason(error)}), expected a store that can be read and "
                "written",
                path=self.url,
            ) from None

    def exists(self) -> bool:
        """Whether a file or a folder is there."""
        return bool(self._ask("exists"))

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return bool(self._ask("isdir"))

    def iterdir(self) -> Iterator[RemotePath]:
        """What is in the folder."""
        for found in self._ask("ls", detail=False, refresh=True):
            yield self / PurePosixPath(found).name

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Make the folder, where there are such things."""
        self._ask("makedirs", exist_ok=exist_ok)

    def stat(self) -> SimpleNamespace:
        """Size, and time of the last change; 0 where the file system doesn't say."""
        size = self._ask("size")
        system, path = self._place
        try:
            changed = int(1e9 * system.modified(path).timestamp())
        except (NotImplementedError, KeyError, AttributeError):
            changed = 0
        return SimpleNamespace(st_size=int(size or 0), st_mtime_ns=changed)

    def open(self, mode: str = "rb") -> BinaryIO:
        """The file, to be read."""
        stream: BinaryIO = self._ask("open", mode)
        return stream

    def read_text(self, encoding: str = "utf-8") -> str:
        """All of the file."""
        data: bytes = self._ask("cat_file")
        return data.decode(encoding)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file."""
        try:
            self._ask("rm_file")
        except FileNotFoundError:
            if not missing_ok:
                raise

    def write_whole(self, data: bytes) -> None:
        """Replace the file by these bytes, all of them or none."""
        if _URL.match(self.url) and self.url.partition("://")[0] in OBJECT_STORES:
            self._ask("pipe_file", data)
            return
        aside = self.with_name(f".proxfield-{secrets.token_hex(8)}.tmp")
        try:
            aside._ask("pipe_file", data)
            aside._ask("mv", self._place[1])
        except BaseException:
            if aside.exists():
                aside.unlink(missing_ok=True)
            raise


AnyPath: TypeAlias = "Path | RemotePath"


def make_path(given: str | os.PathLike[str]) -> AnyPath:
    """A path here or elsewhere."""
    text = os.fspath(given)
    return RemotePath(text) if is_remote(text) else Path(text)
