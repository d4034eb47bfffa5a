"""One way to compile for the whole project: cached per user, serial or parallel.

Compiled kernels are kept in a per-user folder, never in the install folder (which may be
read-only). The folder's name holds a digest of all kernel sources, because numba itself only
notices edits in the file of the function that it caches. A folder of kernels that can be read but
not written (in a container image, say) is still read. As numba writes to the folder that it reads
from, a folder of this user's own gets a link to each kernel there, and new ones beside the links.

`threads` runs kernels on several threads.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property, partial, update_wrapper
from pathlib import Path
from typing import Any, TypeAlias

import numba
import numpy as np
from numba.core.registry import CPUDispatcher
from platformdirs import PlatformDirs

from proxfield.core.compiled import notice, simd
from proxfield.core.compiled.threads import PARALLEL_WORK as PARALLEL_WORK
from proxfield.core.compiled.threads import current_threads as current_threads
from proxfield.core.compiled.threads import in_shares, run_shares, source_lines
from proxfield.core.compiled.threads import max_threads as max_threads
from proxfield.core.compiled.threads import thread_count as thread_count
from proxfield.core.compiled.threads import threads_for as threads_for

MAKERS = ("kernel", "parallel_kernel", "integer_kernel", "inlined", "embedded", "merged", "exact")
"""Names of the functions of this module that compile others."""
FASTMATH = {"nsz", "arcp", "contract", "afn", "reassoc"}
"""No "nnan" and no "ninf": +inf is a legal energy."""
Compiled: TypeAlias = Any
"""A function compiled by numba: a dispatcher, which is called like the function."""
Decorator: TypeAlias = Callable[[Callable[..., Any]], Compiled]
_njit: Compiled = numba.njit
KERNELS = (".nbi", ".nbc", ".ready")
"""Endings of numba's files (the signatures of a function, the code for one of them) and of ours."""
OPTIONS: dict[str, bool | str] = {"error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True}
"""What all compiled functions have; nobody calls them from C."""


notice.listen()


def cache_root() -> Path:
    """The folder of all of proxfield's caches; PROXFIELD_CACHE_DIR overrides it."""
    own = os.environ.get("PROXFIELD_CACHE_DIR")
    if own:
        return Path(own)
    return PlatformDirs("proxfield", appauthor=False, opinion=False).user_cache_path


@cache
def kernel_cache() -> Path:
    """The folder that kernels compiled from these very sources are read from and written to.

    If the user's can't be written, it is a temporary one with links to what is in the user's.
    """
    wanted = _wanted_folder()
    with suppress(OSError):
        if not wanted.exists():
            _forget_old(wanted.parent)
        wanted.mkdir(parents=True, exist_ok=True)
        if is_writable(wanted):
            return wanted
    private = _private_folder()
    there = kernel_files(wanted)
    if there:
        return link_kernels(wanted, there, private)
    spare = private / wanted.name
    warnings.warn(
        f"can't write compiled kernels to {wanted.parent}; using {spare} "
        "(set PROXFIELD_CACHE_DIR to a folder that lasts)",
        stacklevel=2,
    )
    spare.mkdir(parents=True, exist_ok=True)
    return spare


def shared_kernels() -> Path | None:
    """The folder that kernels are read from but not written to; None if there is none."""
    wanted = _wanted_folder()
    return wanted if wanted != kernel_cache() and kernel_files(wanted) else None


def _wanted_folder() -> Path:
    """The folder of these sources' kernels in the user's cache, whether it can be used or not."""
    digest = hashlib.sha256(f"{numba.__version__} {simd.choose().name}".encode())
    for source in kernel_sources(Path(__file__).parents[2]).values():
        digest.update(source)
    return cache_root() / f"kernels-{digest.hexdigest()[:12]}"


def kernel_sources(package: Path) -> dict[Path, bytes]:
    """The files of compiled functions, and those that they import from this package.

    Functions and numbers of other files become part of what is compiled.

    Args:
        package: The folder of the package.

    Returns:
        What each file holds, by its path.
    """
    texts = {path: path.read_bytes() for path in sorted(package.rglob("*.py"))}
    marks = [f"\n@{name}\n".encode() for name in MAKERS]
    own = package / "core" / "compiled"
    found = {p for p, text in texts.items() if p.parent == own or any(m in text for m in marks)}
    for path in list(found):
        for name in re.findall(rb"^from proxfield\.([\w.]+) import", texts[path], re.MULTILINE):
            place = package / name.decode().replace(".", "/")
            found.update([place.with_suffix(".py"), place / "__init__.py"])
    return {path: text for path, text in texts.items() if path in found}


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
        try:
            here.symlink_to(path.absolute())
        except FileExistsError:  # another process was faster
            pass
        except OSError:  # Windows has links for few users
            shutil.copyfile(path, here)
    return out


_ready: set[str] = set()
"""Families of kernels that are known to be compiled; see `is_ready`."""


def note_ready(name: str) -> None:
    """Remember, for later processes too, that a family of kernels is compiled."""
    if name not in _ready:
        _ready.add(name)
        with suppress(OSError):  # a folder that can't be written to: they are found out again
            (kernel_cache() / f"{name}.ready").touch()


def is_ready(name: str) -> bool:
    """Whether a family of kernels has been compiled, by this process or an earlier one."""
    if name not in _ready and (kernel_cache() / f"{name}.ready").exists():
        _ready.add(name)
    return name in _ready


def _private_folder() -> Path:
    """A folder for temporary files that only this user can write to.

    Compiled kernels are code: a folder that somebody else made or may write to won't do.
    """
    uid = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"proxfield-{uid}"
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
        own = stat.S_ISDIR(about.st_mode) and about.st_uid == uid and not about.st_mode & 0o022
        if own or not hasattr(os, "getuid"):
            return folder
    return Path(tempfile.mkdtemp(prefix="proxfield-"))


def _forget_old(root: Path) -> None:
    """Remove kernels of other versions that haven't changed for a month."""
    for other in root.glob("kernels-*"):
        with suppress(OSError):
            newest = max(path.stat().st_mtime for path in [other, *other.rglob("*")])
            if time.time() - newest > 30 * 86400:
                shutil.rmtree(other)


def kernel(function: Callable[..., Any]) -> Compiled:
    """Compile for one thread: called from Python, runs many iterations."""
    config: Any = numba.config
    before = config.CACHE_DIR  # numba reads it now; the user's own functions keep theirs
    config.CACHE_DIR = str(kernel_cache())
    try:
        return _njit(cache=True, fastmath=FASTMATH, **OPTIONS)(function)
    finally:
        config.CACHE_DIR = before


class ParallelKernel:
    """A kernel whose loop over ``numba.prange`` is divided among threads; called from Python only.

    `threads.in_shares` says what it may hold. Attributes that aren't its own are those of numba's
    dispatcher.

    Args:
        function: The kernel, whose last statement is a loop over ``numba.prange``.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self._function, self._lines = function, source_lines(function)

    @cached_property
    def compiled(self) -> Compiled:
        """The function for one thread: two more arguments say which share of the loop it does."""
        return kernel(in_shares(self._function, self._lines))

    def __call__(self, *args: Any) -> None:
        threads = current_threads()
        if threads == 1:
            self.compiled(*args, 0, 1)
        else:
            run_shares(self.compiled, args, threads)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also while an instance is being unpickled or copied
            raise AttributeError(name)
        return getattr(self.compiled, name)


parallel_kernel = ParallelKernel

MAX_PLAIN_ENTRIES = 4096
"""Entries of the largest array up to which an `integer_kernel` may run in Python."""
MAX_PLAIN_SECONDS = 0.2
"""Seconds that it may spend there before it is compiled: less than that takes."""


class IntegerKernel:
    """A kernel whose results are the same in Python, since it rounds nothing.

    Where it isn't compiled yet, small inputs run in Python: compiling would take longer.

    Args:
        function: The kernel.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.function, self.compiled = function, kernel(function)
        self.patience = MAX_PLAIN_SECONDS

    def warm_up(self) -> None:
        """Compile or load it in the next call, for work that is timed."""
        self.patience = 0.0

    def __call__(self, *args: Any) -> Any:
        entries = max(arg.size for arg in args if isinstance(arg, np.ndarray))
        small = entries <= MAX_PLAIN_ENTRIES and self.patience > 0.0
        name = f"{self.function.__module__}.{self.function.__name__}"
        if not small or is_ready(name):
            found = self.compiled(*args)
            note_ready(name)
            return found
        begun = time.perf_counter()
        try:
            with np.errstate(over="ignore"):  # random numbers count modulo 2⁶⁴
                return self.function(*args)
        finally:
            self.patience -= time.perf_counter() - begun


integer_kernel = IntegerKernel


class Helper(CPUDispatcher):
    """A compiled function that only compiled functions call; from Python it runs uncompiled."""

    def __call__(self, *args: Any) -> Any:
        return self.py_func(*args)


def _helper(function: Callable[..., Any], **options: bool | str | set[str]) -> Compiled:
    options |= {"no_cpython_wrapper": True, **OPTIONS}
    out: Compiled = _njit(**options)(function)
    if isinstance(out, CPUDispatcher):  # it isn't under NUMBA_DISABLE_JIT
        out.__class__ = Helper  # without the wrapper a call from Python would end the process
    return out


inlined: Decorator = partial(_helper, fastmath=FASTMATH)
"""A helper that only kernels call; LLVM inlines it."""
embedded: Decorator = partial(_helper, fastmath=FASTMATH, inline="always")
"""Like `inlined`, but numba itself inlines it: references to arrays aren't counted per call."""
merged: Decorator = partial(_helper, fastmath=FASTMATH, forceinline=True)
"""Like `inlined`, but LLVM must: calls count references to arrays, which takes long."""
exact: Decorator = partial(_helper, fastmath={"contract", "arcp", "nsz", "afn"})
"""Like `inlined`, for arithmetic whose order matters: nothing is reassociated."""
