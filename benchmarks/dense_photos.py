"""Dense CRFs on photographs, next to pydensecrf: speed, memory and accuracy at every bandwidth.

    python benchmarks/dense_photos.py --peer PYTHON --photos FOLDER … --json FILE

Photographs are all PNG, JPEG and BMP files of the folders (at most ``--each`` per folder, evenly
spaced by name) and those that scikit-image ships, if ``--peer`` has it. ``--peer`` names a Python
in which pydensecrf (``pip install pydensecrf2 scikit-image``) can be imported.

Speed: for every photograph, bandwidth and number of labels, building both terms (Gaussian σ 3
weight 3; bilateral or colors alone, weight 10) and 10 updates, in float32, through the same calls.
Three processes take turns: proxfield on one thread and on two, and pydensecrf, which has one. Each
has run once before. The least CPU time counts for one thread (other work on the machine adds to
wall time more than to CPU time), and the least wall time for two. Memory is the peak of the
resident set above what it was with the inputs loaded, in processes of their own in which freed
blocks go back to the system at once (MALLOC_MMAP_THRESHOLD_, which makes programs slower).

Accuracy: on the central 320×240 pixels (``--crop``). One update from given marginals shows the
messages A q up to a constant per pixel, so differences between labels are compared with those of
the exact kernel, normalized symmetrically, at 400 pixels. Signals: random sharp distributions over
21 labels, a random labelling, and regions with straight borders.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

BANDWIDTHS = [(80, 13), (67, 3), (64, 5), (80, 5), (40, 5), (30, 3), (0, 5)]
"""Of place and color; no place: colors alone."""
LABELS = (21, 2)
CROP = (240, 320)
SAMPLE = 400
TILE = 256
FAR = 6.3
"""Standard deviations."""
SHIPPED = ("astronaut", "coffee", "chelsea", "rocket")
EXPORT = """
import sys
import numpy as np
from skimage import data
for name in sys.argv[2:]:
    np.save(f"{sys.argv[1]}/{name}.npy", getattr(data, name)())
"""


# ---- the two sides ----


def add_terms(crf: Any, image: np.ndarray, place: float, color: float) -> None:
    """A spatial term, and a bilateral one or one of colors alone."""
    crf.addPairwiseGaussian(3, 3)
    if place:
        crf.addPairwiseBilateral(place, color, image, 10)
    else:
        crf.addPairwiseEnergy(colors(image, color), 10)


def colors(image: np.ndarray, color: float) -> np.ndarray:
    """Colors in standard deviations, as pydensecrf takes features.  # (3, n)"""
    return np.ascontiguousarray((image.reshape(-1, 3).T / color).astype(np.float32))


def unaries(height: int, width: int, n_labels: int) -> np.ndarray:
    """Energies that favor regions, with noise.  # (labels, n)"""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width]
    favorite = ((5 * x // width) + 5 * (4 * y // height)) % n_labels
    energies = rng.random((n_labels, height * width), dtype=np.float32) * 2 + 1
    energies[favorite.ravel(), np.arange(height * width)] -= 1.5
    return energies


def memory(key: str) -> float:
    """VmRSS or VmHWM in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) / 1024 for x in lines if x.startswith(key))


def worker(side: str, threads: int) -> None:
    """Answer each line of JSON on stdin with one."""
    if side == "ours":
        import proxfield.compat.pydensecrf as settings
        from proxfield.compat.pydensecrf import densecrf

        settings.THREADS = threads
    else:
        from pydensecrf import densecrf
    for line in sys.stdin:
        ask = json.loads(line)
        image = np.load(ask["image"])
        height, width = image.shape[:2]
        if "signals" in ask:
            np.save(ask["out"], messages(densecrf, image, ask))
            print("{}", flush=True)
            continue
        energies = unaries(height, width, ask["labels"])
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        wall, cpu = time.perf_counter(), time.process_time()
        crf = densecrf.DenseCRF2D(width, height, ask["labels"])
        crf.setUnaryEnergy(energies)
        add_terms(crf, image, ask["place"], ask["color"])
        q = crf.inference(10)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        answer = {"wall": wall, "cpu": cpu, "megabytes": memory("VmHWM") - before}
        del q, crf
        print(json.dumps(answer), flush=True)


class Side:
    """A worker process."""

    def __init__(self, python: str, side: str, threads: int, frugal: bool = False) -> None:
        self.process = subprocess.Popen(
            [python, __file__, "--worker", side, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": str(threads),
                **({"MALLOC_MMAP_THRESHOLD_": "65536"} if frugal else {}),
            },
        )

    def ask(self, **what: Any) -> dict[str, float]:
        """One run."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        answer: dict[str, float] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# ---- speed ----


def speed(sides: dict[str, Side], photos: dict[str, Path], repeats: int) -> list[dict[str, Any]]:
    """Every cell; runs in turns."""
    first = next(iter(photos.values()))
    for side in sides.values():
        for n_labels in LABELS:
            for place, color in BANDWIDTHS:  # compile and load
                side.ask(image=str(first), place=place, color=color, labels=n_labels)
    rows = []
    for name, path in photos.items():
        for place, color in BANDWIDTHS:
            for n_labels in LABELS:
                runs: dict[str, list[dict[str, float]]] = {s: [] for s in sides}
                for k in range(repeats):
                    for s, side in sides.items():
                        if k == 0 or "memory" not in s:
                            runs[s].append(
                                side.ask(image=str(path), place=place, color=color, labels=n_labels)
                            )
                row: dict[str, Any] = {"photo": name, "bandwidth": label(place, color)}
                row["labels"] = n_labels
                for s, answers in runs.items():
                    row[s] = {key: min(a[key] for a in answers) for key in ("wall", "cpu")}
                    row[s]["megabytes"] = max(a["megabytes"] for a in answers)
                rows.append(row)
                print(describe(row), flush=True)
    return rows


def label(place: float, color: float) -> str:
    """How a bandwidth is named."""
    return f"{place}/{color}" if place else f"colors/{color}"


def ratios(row: dict[str, Any]) -> tuple[float, float, float]:
    """How many times as fast on one thread and on two, and the share of the peer's memory."""
    peer, one, two = row["peer"], row["ours 1"], row["ours 2"]
    memory = row["ours memory"]["megabytes"] / row["peer memory"]["megabytes"]
    return peer["cpu"] / one["cpu"], peer["wall"] / two["wall"], memory


def describe(row: dict[str, Any]) -> str:
    """One cell as text."""
    one, two, share = ratios(row)
    return (
        f"{row['photo']:14} {row['bandwidth']:9} {row['labels']:3} labels: "
        f"peer {row['peer']['cpu']:.3f} s, ours {row['ours 1']['cpu']:.3f} s: {one:.2f} times as "
        f"fast on one thread, {two:.2f} on two; {100 * share:.0f} % of the memory "
        f"({row['ours memory']['megabytes']:.0f} of {row['peer memory']['megabytes']:.0f} MB)"
    )


# ---- accuracy ----


def signals(height: int, width: int) -> dict[str, np.ndarray]:
    """Marginals.  # (n, labels)"""
    n = height * width
    rng = np.random.default_rng(0)
    sharp = np.exp(3 * rng.normal(size=(n, 21)))
    y, x = np.mgrid[:height, :width]
    regions = ((x * 5 // width) + (y * 4 // height)) % 4
    return {
        "distributions": sharp / sharp.sum(axis=1, keepdims=True),
        "labelling": hot(rng.integers(0, 5, n), 5),
        "regions": hot(regions.ravel(), 4),
    }


def hot(labels: np.ndarray, n_labels: int) -> np.ndarray:
    """Marginals near 0 and 1."""
    return 1e-4 / n_labels + (1 - 1e-4) * np.eye(n_labels)[labels]


def messages(densecrf: Any, image: np.ndarray, ask: dict[str, Any]) -> np.ndarray:
    """Differences of the messages of the labels from that of the first.  # (n, all labels)"""
    height, width = image.shape[:2]
    out = []
    for q in signals(height, width).values():
        energies = np.ascontiguousarray(-np.log(q.T).astype(np.float32))
        crf = densecrf.DenseCRF2D(width, height, q.shape[1])
        crf.setUnaryEnergy(energies)
        if ask["place"]:
            crf.addPairwiseBilateral(ask["place"], ask["color"], image, 1.0)
        else:
            crf.addPairwiseEnergy(colors(image, ask["color"]), 1.0)
        after = np.log(np.maximum(np.array(crf.inference(1), dtype=np.float64), 1e-38))
        seen = (after + energies).T
        out.append(seen[:, 1:] - seen[:, :1])
    return np.concatenate(out, axis=1)


def exact(image: np.ndarray, place: float, color: float, sample: np.ndarray) -> list[np.ndarray]:
    """The same by the exact kernel, at some pixels."""
    height, width = image.shape[:2]
    f = features(image, place, color)
    root = 1 / np.sqrt(row_sums(f))
    a = kernel(f[sample], f) * root[sample, None] * root
    seen = [a @ q for q in signals(height, width).values()]
    return [s[:, 1:] - s[:, :1] for s in seen]


def features(image: np.ndarray, place: float, color: float) -> np.ndarray:
    """Of all pixels, in standard deviations around their means.  # (n, d)"""
    height, width = image.shape[:2]
    y, x = np.mgrid[:height, :width]
    columns = [x / place, y / place] if place else []
    columns += [image[..., k] / color for k in range(3)]
    f = np.stack(columns, axis=-1).reshape(height * width, -1)
    return (f - f.mean(axis=0)).astype(np.float32)


def kernel(f: np.ndarray, g: np.ndarray) -> np.ndarray:
    """The exact kernel between the rows of two arrays of features."""
    half, other = (0.5 * (x * x).sum(axis=1) for x in (f, g))
    return np.exp(np.minimum(f @ g.T - half[:, None] - other, 0.0))


def row_sums(f: np.ndarray) -> np.ndarray:
    """Sums of the rows of the exact kernel, over tiles of points that are near each other.

    Pairs of tiles that are farther apart than `FAR` count as 0 (each pair is below 3e-9).
    """
    tiles = split(f, np.arange(len(f)))
    low, high = (np.array([bound(f[t], axis=0) for t in tiles]) for bound in (np.min, np.max))
    out = np.zeros(len(f))
    for i, mine in enumerate(tiles):
        gap = np.maximum(np.maximum(low - high[i], low[i] - high), 0.0)
        for j in i + np.flatnonzero((gap[i:] ** 2).sum(axis=1) < FAR**2):
            k = kernel(f[mine], f[tiles[j]])
            out[mine] += k.sum(axis=1, dtype=np.float64)
            if j > i:
                out[tiles[j]] += k.sum(axis=0, dtype=np.float64)
    return out


def split(f: np.ndarray, some: np.ndarray) -> list[np.ndarray]:
    """Halves along the longest side, again and again, until tiles are small."""
    if len(some) <= TILE:
        return [some]
    longest = np.argmax(np.ptp(f[some], axis=0))
    order = np.argpartition(f[some, longest], len(some) // 2)
    return [
        *split(f, some[order[: len(some) // 2]]),
        *split(f, some[order[len(some) // 2 :]]),
    ]


def accuracy(
    sides: dict[str, Side], photos: dict[str, Path], folder: Path, size: tuple[int, int]
) -> list[dict[str, Any]]:
    """Relative errors of both sides, on the central pixels."""
    from proxfield.core.filters.lattice import suitable_blur

    rows = []
    for name, path in photos.items():
        image = np.load(path)
        top, left = ((a - b) // 2 for a, b in zip(image.shape, size, strict=False))
        top, left = max(top, 0), max(left, 0)
        crop = np.ascontiguousarray(image[top : top + size[0], left : left + size[1]])
        part, out = folder / "crop.npy", folder / "messages.npy"
        np.save(part, crop)
        n = crop.shape[0] * crop.shape[1]
        sample = np.random.default_rng(3).choice(n, SAMPLE, replace=False)
        for place, color in BANDWIDTHS:
            row: dict[str, Any] = {"photo": name, "bandwidth": label(place, color)}
            row["blur"] = suitable_blur(features(crop, place, color)).name
            right = exact(crop, place, color, sample)
            for s in ("ours 1", "peer"):
                sides[s].ask(image=str(part), place=place, color=color, signals=True, out=str(out))
                seen = np.load(out)[sample]
                cuts = np.cumsum([r.shape[1] for r in right])[:-1]
                parts = zip(signals(2, 2), np.split(seen, cuts, axis=1), right, strict=True)
                row[s] = {
                    key: float(np.linalg.norm(a - b) / np.linalg.norm(b)) for key, a, b in parts
                }
            rows.append(row)
            text = ", ".join(
                f"{k} {row['ours 1'][k]:.3f} ({row['peer'][k]:.3f})" for k in row["peer"]
            )
            print(f"{name:14} {row['bandwidth']:9} ours (peer): {text}", flush=True)
    return rows


# ---- all of it ----


def gather(folders: list[Path], each: int, peer: str, target: Path) -> dict[str, Path]:
    """Photographs as arrays in a folder."""
    from PIL import Image

    out = {}
    for folder in folders:
        files = sorted(
            p for p in folder.iterdir() if p.suffix in (".png", ".jpg", ".bmp") and is_photo(p)
        )
        for at in np.unique(np.linspace(0, len(files) - 1, min(each, len(files))).astype(int)):
            path = files[at]
            out[path.stem] = target / f"{path.stem}.npy"
            np.save(out[path.stem], np.array(Image.open(path).convert("RGB")))
    done = subprocess.run([peer, "-c", EXPORT, str(target), *SHIPPED], check=False)
    if done.returncode == 0:
        out |= {name: target / f"{name}.npy" for name in SHIPPED}
    return out


def is_photo(path: Path) -> bool:
    """Not a picture of labels (by the names of the sets)."""
    return not any(path.stem.endswith(x) for x in ("_gt", "-b")) and not path.stem.startswith(
        ("anno", "out")
    )


def summarize(rows: list[dict[str, Any]]) -> None:
    """The least favorable cells."""
    one, two, share = zip(*(ratios(r) for r in rows), strict=True)
    print(
        f"{len(rows)} cells: one thread {min(one):.2f} to {max(one):.2f} times as fast (median "
        f"{np.median(one):.2f}), two threads {min(two):.2f} to {max(two):.2f} (median "
        f"{np.median(two):.2f}), at most {100 * max(share):.0f} % of the memory (median "
        f"{100 * np.median(share):.0f} %)"
    )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--peer", help="a Python that can import pydensecrf")
    parser.add_argument("--photos", type=Path, nargs="*", default=[], help="folders of photographs")
    parser.add_argument("--each", type=int, default=3, help="photographs per folder")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where to keep the numbers")
    parser.add_argument(
        "--crop", type=int, nargs=2, default=CROP, metavar=("HEIGHT", "WIDTH"), help="for accuracy"
    )
    parser.add_argument("--only", choices=("speed", "accuracy"))
    parser.add_argument("--worker", choices=("ours", "peer"), help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.threads)
        return
    if options.peer is None:
        parser.error("--peer: name a Python that can import pydensecrf")
    found: dict[str, Any] = {"load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as name:
        photos = gather(options.photos, options.each, options.peer, Path(name))
        sides = {
            "ours 1": Side(sys.executable, "ours", 1),
            "ours 2": Side(sys.executable, "ours", 2),
            "peer": Side(options.peer, "peer", 1),
            "ours memory": Side(sys.executable, "ours", 2, frugal=True),
            "peer memory": Side(options.peer, "peer", 1, frugal=True),
        }
        if options.only != "speed":
            found["accuracy"] = accuracy(sides, photos, Path(name), tuple(options.crop))
        if options.only != "accuracy":
            found["speed"] = speed(sides, photos, options.repeats)
            summarize(found["speed"])
        for side in sides.values():
            side.close()
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
