"""Images that are read, computed and written at the same time, as on a GPU; here on the CPU."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from proxfield.cli import refine_images
from proxfield.cli.progress import Counter
from proxfield.cli.refine_files import Pair
from proxfield.cli.refine_images import ImageWork, refine_one
from proxfield.core.solve.rules.registry import make_rule

COUNT = 7
RUN = {"rule": make_rule("fixed"), "max_iters": 2, "threads": 1, "device": "cpu"}
WORK = ImageWork(run=RUN)


@pytest.fixture
def pairs(tmp_path: Path) -> list[Pair]:
    """Images with probabilities, and where their labels go."""
    rng = np.random.default_rng(0)
    found = []
    for k in range(COUNT):
        image = rng.integers(0, 255, size=(6, 8, 3)).astype(np.uint8)
        p = rng.random((6, 8, 3)).astype(np.float32) + 0.1
        Image.fromarray(image).save(tmp_path / f"{k}.png")
        np.save(tmp_path / f"{k}.npy", p / p.sum(-1, keepdims=True))
        target = tmp_path / "out" / f"{k}.png"
        found.append(Pair(tmp_path / f"{k}.png", tmp_path / f"{k}.npy", (target, target), None))
    (tmp_path / "out").mkdir()
    return found


def run(pairs: list[Pair], ahead: int = 3) -> Iterator[Any]:
    with Counter(len(pairs)) as display:
        yield from refine_images.run_pipeline(pairs, WORK, ahead, display)


@pytest.mark.parametrize("ahead", [1, 3, 50])
def test_the_same_files_and_records(pairs: list[Pair], ahead: int) -> None:
    expected = [refine_one(pair, WORK) for pair in pairs]
    files = [pair.targets[0].read_bytes() for pair in pairs]
    for pair in pairs:
        pair.targets[0].unlink()
    found = list(run(pairs, ahead))
    assert [pair.targets[0].read_bytes() for pair in pairs] == files
    for record in (*expected, *found):
        record.pop("seconds")
    assert found == expected


def test_a_failure_loses_no_other_image(pairs: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that can't be read, one that can't be computed, one that can't be written."""
    pairs[1].unary.write_bytes(b"nonsense")
    np.save(pairs[3].unary, np.full((6, 8, 3), 2.0, dtype=np.float32))
    write = refine_images.write_one

    def failing(pair: Pair, *rest: Any) -> Any:
        if pair is pairs[5]:
            raise OSError("no space left")
        return write(pair, *rest)

    monkeypatch.setattr(refine_images, "write_one", failing)
    found = list(run(pairs))
    assert [r["image"] for r in found] == [str(pair.image) for pair in pairs]
    assert [k for k, r in enumerate(found) if r["error"] is not None] == [1, 3, 5]
    assert "no space left" in found[5]["error"]
    assert [p.targets[0].exists() for p in pairs] == [k not in (1, 3, 5) for k in range(COUNT)]


def test_files_are_read_while_others_are_computed(
    pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never more of them than may be held."""
    lock, held, most = threading.Lock(), 0, 0
    read, compute = refine_images.read_one, refine_images.compute_one
    seen = []

    def counted(*args: Any) -> Any:
        nonlocal held, most
        with lock:
            held += 1
            most = max(most, held)
        return read(*args)

    def slow(*args: Any, **more: Any) -> Any:
        nonlocal held
        seen.append(held)
        time.sleep(0.02)
        with lock:
            held -= 1
        return compute(*args, **more)

    monkeypatch.setattr(refine_images, "threads_for", lambda _: 4)
    monkeypatch.setattr(refine_images, "read_one", counted)
    monkeypatch.setattr(refine_images, "compute_one", slow)
    assert len(list(run(pairs, 3))) == COUNT
    assert max(seen) > 1
    assert most <= 4  # the one that is computed, and three


def test_interrupted_between_images(pairs: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing half-written, nothing begun after it, and no thread left."""
    compute, before = refine_images.compute_one, threading.active_count()

    def stopping(pair: Pair, *rest: Any, **more: Any) -> Any:
        if pair is pairs[3]:
            raise KeyboardInterrupt
        return compute(pair, *rest, **more)

    monkeypatch.setattr(refine_images, "compute_one", stopping)
    found: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        found.extend(run(pairs, 2))
    assert len(found) <= 3
    assert not any(pair.targets[0].exists() for pair in pairs[3:])
    names = {path.name.partition(".")[0] for path in pairs[0].targets[0].parent.iterdir()}
    assert names <= {"0", "1", "2"}
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_only_for_several_images_on_a_gpu(
    pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def note(pairs: list[Pair], *_: Any) -> Iterator[Any]:
        taken.append(len(pairs))
        return iter([])

    monkeypatch.setattr(refine_images, "run_on_gpu", note)
    there = ImageWork(run={**RUN, "device": "cuda"})
    with Counter(COUNT) as display:
        list(refine_images.run_all(pairs, there, 1, display))
        assert taken == [COUNT]
        list(refine_images.run_all(pairs[:2], WORK, 1, display))
    assert taken == [COUNT]


def test_an_image_leaves_the_filters_of_warnings_alone(pairs: list[Pair]) -> None:
    before = list(warnings.filters)
    assert refine_one(pairs[0], WORK)["error"] is None
    assert warnings.filters == before
