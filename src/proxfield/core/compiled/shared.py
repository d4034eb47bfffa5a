"""A folder of compiled kernels that can be read but not written: in a container image, say.

numba writes to the folder that it reads from. So a folder of this user's own gets a link to each
kernel of the shared one, and new kernels are written beside the links.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path

KERNELS = (".nbi", ".nbc", ".ready")
"""Endings of numba's files (the signatures of a function, the code for one of them) and of ours."""


def is_writable(folder: Path) -> bool:
    """Whether kernels can be written to a folder and to all folders that numba made in it."""
    inner = (path for path in folder.iterdir() if path.is_dir())
    return all(os.access(path, os.W_OK | os.X_OK) for path in (folder, *inner))


def kernel_files(folder: Path) -> list[Path]:
    """Compiled kernels in a folder that can be read; none if there is no such folder."""
    found = sorted(path for path in folder.rglob("*") if path.suffix in KERNELS)
    return [path for path in found if path.is_file() and os.access(path, os.R_OK)]


def link_kernels(shared: Path, files: list[Path], place: Path) -> Path:
    """A folder with links to the kernels of another one; copies where there are no links.

    Its name holds a digest of their sizes and dates: links of an index to code that somebody else
    has compiled since would be mixed up.

    Args:
        shared: The folder that can't be written.
        files: Its kernels.
        place: Where the folder is made.

    Returns:
        The folder, whose other kernels are those of former processes.
    """
    state = hashlib.sha256(str(shared.absolute()).encode())
    for path in files:
        about = path.stat()
        state.update(f"{path.relative_to(shared)} {about.st_size} {about.st_mtime_ns}".encode())
    out = place / f"{shared.name}-{state.hexdigest()[:12]}"
    for path in files:
        here = out / path.relative_to(shared)
        if os.path.lexists(here):
            continue
        here.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another process was faster
            try:
                here.symlink_to(path.absolute())
            except FileExistsError:
                raise
            except OSError:  # Windows has links for few users
                shutil.copyfile(path, here)
    return out
