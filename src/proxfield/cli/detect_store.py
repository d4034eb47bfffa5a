"""The output folder of ``proxfield detect``: a small file per frame, so that nothing is lost.

settings.json      what the results depend on
frames/N.json      detections, status and F of a frame; written last, so it says: finished
maps/N.dat, .npy   probabilities of all locations
pictures/N.png     cameras and the ground from above
detections.csv     all frames that are finished; also .json
frames.csv         a line per frame: people, status, F, iterations
rectangles.npz     of a calibration
warm.npz           the last map, where frames start from the one before
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proxfield.cli.refine_files import make_folder
from proxfield.core.common.arrays import Doubles
from proxfield.core.common.records import Record, plain
from proxfield.errors import InputError, shown
from proxfield.io.files import atomic_write, display_name
from proxfield.io.pom import write_dat
from proxfield.people.detect import OccupancyMap
from proxfield.people.detections import Detections

FOLDERS = {"json": "frames", "dat": "maps", "npy": "maps", "png": "pictures"}
COLUMNS = ("frame", "people", "status", "free_energy", "iterations", "seconds")
SHOWN_DIFFERENCES = 3
"""Settings that a message about other settings names."""


@dataclass(frozen=True)
class ResultFolder:
    """The results in a folder.

    Args:
        folder: The folder.
        maps: Kinds of maps that are wanted, "dat" or "npy".
        pictures: Whether pictures are wanted.
    """

    folder: Path
    maps: tuple[str, ...] = ()
    pictures: bool = False

    def file(self, frame: int, ending: str) -> Path:
        """What was found in a frame ("json"), its map ("dat", "npy") or its picture ("png")."""
        return self.folder / FOLDERS[ending] / f"{frame:08d}.{ending}"

    # ---- begin ----

    def check(self, settings: Record) -> None:
        """Refuse a folder with results of other settings, or one that isn't ours."""
        name = display_name(self.folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError("-o: a file is in the way, expected a folder", path=name)
        file, other = self.folder / "settings.json", "use another folder or --overwrite"
        there, begun = _read_json(file), any((self.folder / "frames").glob("*.json"))
        if begun and not file.exists():
            what = "-o: has frames but no settings.json, so that nobody knows what they are of"
            raise InputError(f"{what}; {other}", path=name)
        if there is None and file.exists():
            raise InputError(f"-o: can't be read; {other}", path=display_name(file))
        if there is None or not begun:
            return  # nothing was finished
        now = plain(settings)
        if "images" not in there or "images" not in now:  # pictures may be added later
            there.pop("images", None)
            now.pop("images", None)
        differences = compare(there, now)
        if differences:
            more = len(differences) - SHOWN_DIFFERENCES
            text = "; ".join(differences[:SHOWN_DIFFERENCES])
            text += f" and {more} more" if more > 0 else ""
            raise InputError(f"-o: holds results of other settings ({text}); {other}", path=name)

    def clear(self) -> None:
        """Remove all results, settings last; other files stay."""
        for ending, folder in FOLDERS.items():
            for file in (self.folder / folder).glob(f"*.{ending}"):
                if file.stem.isdigit():
                    file.unlink()
        tables = ("detections.csv", "detections.json", "frames.csv")
        for name in ("warm.npz", "end.json", *tables, "settings.json"):
            (self.folder / name).unlink(missing_ok=True)

    def begin(self, settings: Record) -> None:
        """Make the folders, and write down what the results depend on."""
        names = ["frames", *(["maps"] if self.maps else []), *(["pictures"] * self.pictures)]
        for name in ("", *names):
            make_folder(str(self.folder / name), "-o")
        before = _read_json(self.folder / "settings.json") or {}
        if "images" in before:  # a run without pictures leaves those that are there
            settings = {"images": before["images"], **settings}
        text = json.dumps(plain(settings), indent=1, ensure_ascii=False)
        atomic_write(self.folder / "settings.json", f"{text}\n")

    # ---- frames ----

    def finished(self, frame: int) -> bool:
        """Whether all files of a frame are there."""
        endings = ("json", *self.maps, *(["png"] if self.pictures else []))
        return all(self.file(frame, ending).exists() for ending in endings)

    def write_frame(self, found: OccupancyMap) -> Record:
        """Write the map and the detections of a frame; the picture comes before."""
        for kind in self.maps:
            if kind == "dat":
                write_dat(self.file(found.frame, kind), found.q)
            else:
                stream = io.BytesIO()
                np.save(stream, found.q)
                atomic_write(self.file(found.frame, kind), stream.getvalue())
        d, result = found.detections, found.result
        record: Record = {
            "frame": found.frame,
            "status": result.status.label,
            "free_energy": result.free_energy,
            "iterations": result.iterations,
            "seconds": result.seconds,
            **{name: getattr(d, name).tolist() for name in ("location", "x", "y", "score")},
        }
        atomic_write(self.file(found.frame, "json"), json.dumps(plain(record)) + "\n")
        return record

    def write_end(self, header: int, frames: int) -> None:
        """Remember that videos have fewer frames than the shortest header says."""
        text = json.dumps({"header": header, "frames": frames}) + "\n"
        atomic_write(self.folder / "end.json", text)

    def read_end(self, header: int) -> int:
        """Number of frames that videos have; ``header`` is what their headers say."""
        known = _read_json(self.folder / "end.json") or {}
        return int(known["frames"]) if known.get("header") == header else header

    def write_warm(self, found: OccupancyMap, failed: Sequence[int], order: Sequence[int]) -> None:
        """Keep the map that the next frame starts from; after the frame's own files.

        Args:
            found: The last map.
            failed: Frames before it that can't be read.
            order: All frames up to it, in their order.
        """
        stream = io.BytesIO()
        lists = [np.array(some, dtype=np.int64) for some in (failed, order)]
        np.savez(stream, q=found.q, failed=lists[0], order=lists[1])
        atomic_write(self.folder / "warm.npz", stream.getvalue())

    def read_warm(self) -> tuple[Doubles, list[int], list[int]] | None:
        """The last map that was written, frames that failed, and all frames up to it."""
        try:
            with np.load(self.folder / "warm.npz", allow_pickle=False) as stored:
                q = np.asarray(stored["q"], dtype=np.float64)
                return q, stored["failed"].tolist(), stored["order"].tolist()
        except Exception:  # missing or damaged: begin again
            return None

    # ---- end ----

    def write_tables(self) -> Detections:
        """Write detections and a line per frame, of all frames that are finished."""
        files = sorted((self.folder / "frames").glob("*.json"))
        read = [_read_json(file) for file in files if file.stem.isdigit()]
        records = [record for record in read if record is not None]
        parts = []
        for r in records:
            n = len(r["location"])
            x, y = (np.array([np.nan if v is None else v for v in r[key]]) for key in ("x", "y"))
            frame = np.full(n, r["frame"])
            parts.append(Detections(frame, x, y, r["score"], r["location"], [r["frame"]]))
        found = Detections.join(parts)
        found.save(self.folder / "detections.csv")
        found.save(self.folder / "detections.json")
        out = io.StringIO()
        write = csv.writer(out, lineterminator="\n")
        write.writerow(COLUMNS)
        for r in records:
            write.writerow([len(r["location"]) if k == "people" else r[k] for k in COLUMNS])
        atomic_write(self.folder / "frames.csv", out.getvalue())
        return found


def compare(there: Record, now: Record) -> list[str]:
    """What differs between settings.

    Example:
        >>> compare({"model": "exact", "scale": 1.0}, {"model": "ratio", "scale": 1.0})
        ['model is exact there, ratio now']
    """
    out = []
    for key in sorted({*there, *now}):
        old, new = there.get(key), now.get(key)
        if old != new:
            name = key.replace("_", " ")
            brief = not (isinstance(old, str) and len(old) == 64)  # a hash says nothing
            out.append(f"{name} is {_word(old)} there, {_word(new)} now" if brief else name)
    return out


def _word(value: object) -> str:
    return value if isinstance(value, str) else "not given" if value is None else shown(value)


def _read_json(path: Path) -> Record | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
