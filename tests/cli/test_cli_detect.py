"""`proxfield detect`: scenes and masks in, files of detections out; runs that are stopped."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfield.io.pom import read_dat, read_pom
from proxfield.people.bodies import Noise
from proxfield.people.detect import POOL, Detector
from proxfield.people.detections import Detections
from proxfield.people.scene import Scene
from proxfield.people.simulate import simulate, write_simulation
from standins import DATA

pytest.importorskip("PIL", reason="masks are pictures")

Invoke = Callable[..., Any]
MASKS = "made/mask-f%f-c%c.png"
CALIBRATED = (
    *("--calibration", "made/calibration.json", "--grid", "1", "--region=-10,-10,10,10"),
    *("--masks", MASKS),
)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated square: 3 cameras, 4 frames, locations a meter apart."""
    folder = tmp_path_factory.mktemp("people") / "made"
    square = simulate("square", people=4, cameras=3, size=(96, 72), spacing=1.0, seed=3)
    write_simulation(square, folder, 4)
    return folder


@pytest.fixture
def made(made_once: Path, tmp_path: Path) -> Path:
    """A copy in the folder that commands run in."""
    return Path(shutil.copytree(made_once, tmp_path / "made"))


def run(invoke: Invoke, *args: Any) -> dict[str, Any]:
    """A call that succeeds: its summary."""
    done = invoke("detect", *args, "--json")
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def refuse(invoke: Invoke, *args: Any, code: int = 2) -> str:
    """A call that fails with one line, and leaves nothing behind."""
    done = invoke("detect", *args, "-o", "out")
    assert done.exit_code == code, done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("proxfield: error: ") and done.stderr.count("\n") == 1
    assert not Path("out").exists()
    message: str = done.stderr
    return message


# ---- what comes out ----


def test_a_pom_scene_says_everything_itself(invoke: Invoke, made: Path) -> None:
    summary = run(invoke, "made/scene.pom", "-o", "out", "--maps", "npy", "--maps", "dat")
    assert summary["frames"] == summary["detected"] == 4 and summary["failed"] == 0
    found = Detections.load("out/detections.csv")
    assert found.frames.tolist() == [0, 1, 2, 3] and len(found) == summary["detections"] > 4
    assert np.isnan(found.x).all()  # a .pom file has no positions
    scene = Scene.from_pom("made/scene.pom")
    square = simulate("square", people=4, cameras=3, size=(96, 72), spacing=1.0, seed=3)
    expected = Detector(density=None).detect(scene, square.masks(2))
    assert np.array_equal(np.load("out/maps/00000002.npy"), expected.q)
    assert read_dat("out/maps/00000002.dat") == pytest.approx(expected.q, rel=1e-8)
    assert found.location[found.frame == 2].tolist() == expected.detections.location.tolist()
    lines = Path("out/frames.csv").read_text().splitlines()
    assert lines[0] == "frame,people,status,free_energy,iterations,seconds" and len(lines) == 5


def test_positions_of_a_pom_scene(invoke: Invoke, made: Path) -> None:
    where = ("--grid", "1", "--region=-10,-10,10,10")
    run(invoke, "made/scene.pom", *where, "--density", "0.003", "-o", "pom")
    run(invoke, *CALIBRATED, "-o", "calibrated")
    text = Path("pom/detections.csv").read_text()
    assert text == Path("calibrated/detections.csv").read_text()
    message = refuse(invoke, "made/scene.pom", "--grid", "2", "--region=-10,-10,10,10")
    assert "has 441 locations, but --grid and --region make 11×11" in message


def test_detections_are_where_people_are(invoke: Invoke, made: Path) -> None:
    # bodies of more than a few pixels, and masks without errors: everybody is found
    clear = simulate("square", people=4, size=(192, 144), spacing=0.5, noise=Noise.none(), seed=3)
    shutil.rmtree(made)
    write_simulation(clear, made, 2)
    run(invoke, *CALIBRATED, "--grid", "0.5", "-o", "out", "--radius", "1")
    done = invoke("evaluate", "out/detections.json", "made/truth.csv", "--radius", "0.5", "--json")
    assert json.loads(done.stdout)["moda"] == 1.0


def test_jobs_give_the_same(invoke: Invoke, made: Path) -> None:
    run(invoke, *CALIBRATED, "-o", "one")
    run(invoke, *CALIBRATED, "-o", "two", "--jobs", "2")
    one, two = Path("one/detections.csv"), Path("two/detections.csv")
    assert one.read_bytes() == two.read_bytes()


def test_parts_together_are_the_whole(invoke: Invoke, made: Path) -> None:
    whole = run(invoke, *CALIBRATED, "-o", "one")
    parts = [run(invoke, *CALIBRATED, "-o", "two", "--part", f"{k}/3") for k in (1, 2, 3)]
    assert sum(part["detected"] for part in parts) == whole["detected"]
    assert run(invoke, *CALIBRATED, "-o", "two")["skipped"] == whole["frames"]
    one, two = Path("one/detections.csv"), Path("two/detections.csv")
    assert one.read_bytes() == two.read_bytes()
    for wrong in ("--warm", "--overwrite"):
        assert invoke("detect", *CALIBRATED, "-o", "x", "--part", "1/3", wrong).exit_code == 2


def test_some_frames_cameras_and_a_scale(invoke: Invoke, made: Path) -> None:
    some = ("--frames", "1:3:2", "--cameras", "2,0", "--scale", "0.5")
    summary = run(invoke, "made/scene.pom", *some, "-o", "out")
    assert summary["frames"] == summary["cameras"] == 2
    assert Detections.load("out/detections.json").frames.tolist() == [1, 3]
    assert run(invoke, "made/scene.pom", "--frames", "2", "-o", "single")["frames"] == 1


def test_priors(invoke: Invoke, made: Path) -> None:
    n = read_pom("made/scene.pom").n_locations
    prior = np.full(n, 1e-3)
    np.save("prior.npy", prior)
    run(invoke, "made/scene.pom", "--frames", "0", "-o", "file")  # which says 0.001
    run(invoke, "made/scene.pom", "--frames", "0", "--prior", "prior.npy", "-o", "array")
    run(invoke, "made/scene.pom", "--frames", "0", "--prior", "1e-3", "-o", "number")
    texts = {Path(f"{name}/detections.csv").read_text() for name in ("file", "array", "number")}
    assert len(texts) == 1
    summary = run(invoke, "made/scene.pom", "--frames", "0", "--prior", "1e-200", "-o", "never")
    assert summary["detections"] == 0


def test_boxes_of_detectors(invoke: Invoke, made: Path) -> None:
    scene = Scene.from_pom("made/scene.pom")
    lines = ["camera,frame,left,top,right,bottom"]
    for name, s in zip(scene.names, scene.silhouettes, strict=True):
        left, top, right, bottom = s.boxes[220].tolist()  # type: ignore[attr-defined]
        lines.append(f"{name},7,{left},{top},{right},{bottom}")
    Path("boxes.csv").write_text("\n".join(lines) + "\n")
    run(invoke, *CALIBRATED[:5], "--boxes", "boxes.csv", "-o", "out")
    found = Detections.load("out/detections.csv")
    assert found.frames.tolist() == [7] and found.location.tolist() == [220]


def test_frames_without_boxes(invoke: Invoke, made: Path) -> None:
    boxes = [s.boxes[220].tolist() for s in Scene.from_pom("made/scene.pom").silhouettes]  # type: ignore[attr-defined]
    lines = ["camera,frame,left,top,right,bottom"]
    lines += [f"{c},{f},{','.join(map(str, b))}" for f in (7, 9) for c, b in enumerate(boxes)]
    Path("boxes.csv").write_text("\n".join(lines) + "\n")
    run(invoke, *CALIBRATED[:5], "--boxes", "boxes.csv", "-o", "all")
    found = Detections.load("all/detections.csv")
    assert found.frames.tolist() == [7, 8, 9] and found.frame.tolist() == [7, 9]
    run(invoke, *CALIBRATED[:5], "--boxes", "boxes.csv", "--frames", "8", "-o", "one")
    assert Detections.load("one/detections.csv").frames.tolist() == [8]
    for c, box in enumerate(boxes):  # camera 2 has no frame 8
        some = {"idxs": [7, 8][: 2 - (c == 2)], "bboxes": [[box], [box]][: 2 - (c == 2)]}
        Path(f"{c}.json").write_text(json.dumps(some))
    lists = (*CALIBRATED[:5], "--boxes", "%c.json")
    done = invoke("detect", *lists, "-o", "strict")
    assert done.exit_code == 1 and "frame 8 of camera 2 is missing" in done.stderr
    run(invoke, *lists, "--missing", "skip", "-o", "skipped")
    assert Detections.load("skipped/detections.csv").frame.tolist() == [7, 8]


def test_pictures(invoke: Invoke, made: Path) -> None:
    pytest.importorskip("matplotlib")
    run(invoke, *CALIBRATED, "--frames", "0:1", "-o", "out")
    summary = run(invoke, *CALIBRATED, "--frames", "0:1", "-o", "out", "--pictures")
    assert summary["detected"] == 2  # their pictures weren't there
    assert sorted(p.name for p in Path("out/pictures").iterdir()) == [
        "00000000.png",
        "00000001.png",
    ]
    assert run(invoke, *CALIBRATED, "--frames", "0:1", "-o", "out", "--pictures")["detected"] == 0


def test_rules_and_models(invoke: Invoke, made: Path) -> None:
    run(invoke, "made/scene.pom", "--frames", "0", "--rule", "fixed", "--set", "step=0.2",
        "--passes", "3", "--model", "ratio", "-o", "out")  # fmt: skip
    settings = json.loads(Path("out/settings.json").read_text())
    assert (settings["rule"], settings["rule step"], settings["passes"]) == ("fixed", 0.2, 3)
    assert Path("out/frames.csv").read_text().splitlines()[1].split(",")[4] == "3"


def test_the_original_program_with_the_settings_of_its_file(invoke: Invoke, made: Path) -> None:
    with (made / "scene.pom").open("a") as file:
        file.write("SMOOTHING_COEFFICIENT 0.6\nMAX_NB_SOLVER_ITERATIONS 7\nERROR_MAX 1e-3\n")
        file.write("NB_STABLE_ERROR_FOR_CONVERGENCE 2\nSIGMA_IMAGE_DENSITY 0.05\nPRIOR 0.02\n")
    some = ("made/scene.pom", "--frames", "0", "--rule", "original")
    run(invoke, *some, "--maps", "npy", "-o", "out")
    settings = json.loads(Path("out/settings.json").read_text())
    expected = {"rule smoothing": 0.6, "rule stable": 2, "rule error": 1e-3, "passes": 7,
                "variance": 0.05, "prior": 0.02, "model": "ratio"}  # fmt: skip
    assert {key: settings[key] for key in expected} == expected
    masks = simulate("square", people=4, cameras=3, size=(96, 72), spacing=1.0, seed=3).masks(0)
    rule = {"smoothing": 0.6, "stable": 2, "error": 1e-3}
    detector = Detector("ratio", "original", rule, passes=7, variance=0.05, density=None)
    found = detector.detect(Scene.from_pom("made/scene.pom"), masks)
    assert np.array_equal(np.load("out/maps/00000000.npy"), found.q)
    run(invoke, *some, "--set", "smoothing=0.9", "--passes", "3", "-o", "mine")
    settings = json.loads(Path("mine/settings.json").read_text())
    assert (settings["rule smoothing"], settings["rule stable"], settings["passes"]) == (0.9, 2, 3)


def test_the_original_program_s_own_results(invoke: Invoke) -> None:
    data = DATA / "pom" / "smidm"
    if not data.is_dir():
        pytest.skip("the published program's scene isn't here")
    some = ("--rule", "original", "--frames", "160:189:10", "--maps", "dat")
    summary = run(invoke, data / "test.pom", *some, "-o", "out")
    assert [r["iterations"] for r in summary["records"]] == [76, 77, 100]
    for frame in (160, 170, 180):
        q = read_dat(f"out/maps/{frame:08d}.dat")
        reference = read_dat(data / "reference_marginals" / f"proba-f{frame}.dat")
        assert np.abs(q - reference).max() <= 1e-6


def test_help_is_light_and_true(process: Callable[..., Any]) -> None:
    result = process("detect", "--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    loaded = {line.split("|")[-1].strip() for line in result.stderr.splitlines()}
    assert result.returncode == 0
    assert not loaded & {"numba", "scipy", "torch"}
    text = " ".join(result.stdout.split())
    d = Detector()
    for option, value in (
        ("Maximum number of iterations per frame.", d.passes),
        ("Expected number of people per square meter.", d.density),
        ("Minimum distance of two detections.", d.radius),
        ("Minimum probability of a detection.", d.threshold),
        ("Distance over which probabilities of neighbors are pooled.", POOL),
    ):
        assert f"{option} [default: {value:g}" in text


def test_the_tutorial_runs_as_printed(invoke: Invoke) -> None:
    pytest.importorskip("matplotlib", reason="pictures")
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "people.md").read_text(encoding="utf-8")
    block = re.search(r"^```sh\n(.*?)^```", page, re.M | re.S)
    assert block is not None
    lines = [line for line in block[1].splitlines() if line.startswith("proxfield ")]
    assert [line.split()[1] for line in lines] == ["make", "detect", "evaluate", "detect"]
    said = ""
    for line in lines:
        done = invoke(*shlex.split(line)[1:])
        assert done.exit_code == 0, done.stderr
        said += done.stdout
    moda = re.search(r"MODA +(\S+)", said)
    assert moda is not None and f"prints MODA {float(moda[1]):.3f}" in page
    assert Path("found/pictures/00000000.png").exists()


# ---- again ----


def test_finished_frames_are_skipped(invoke: Invoke, made: Path) -> None:
    run(invoke, *CALIBRATED, "--frames", "0:1", "-o", "out")
    before = Path("out/frames/00000001.json").stat().st_mtime_ns
    summary = run(invoke, *CALIBRATED, "-o", "out")
    assert (summary["detected"], summary["skipped"]) == (2, 2)
    assert Path("out/frames/00000001.json").stat().st_mtime_ns == before
    assert Detections.load("out/detections.csv").frames.tolist() == [0, 1, 2, 3]
    Path("out/frames/00000001.json").unlink()
    assert run(invoke, *CALIBRATED, "-o", "out")["detected"] == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--model", "ratio"), "model is exact there, ratio now"),
        (("--rule", "fixed"), "rule is backtracking there, fixed now"),
        (("--scale", "0.5"), "scale is 1.0 there, 0.5 now"),
        (("--prior", "0.2"), "prior"),
        (("--threshold", "0.25"), "threshold is 0.5 there, 0.25 now"),
        (("--region=-9,-9,9,9"), "scene"),
        (("--warm",), "warm is not given there, from frame 0 now"),
    ],
)
def test_other_settings_are_refused(
    invoke: Invoke, made: Path, change: tuple[str, ...], words: str
) -> None:
    run(invoke, *CALIBRATED, "-o", "out", "--frames", "0:1")
    kept = {p: p.read_bytes() for p in Path("out").rglob("*") if p.is_file()}
    change = (change,) if isinstance(change, str) else change
    done = invoke("detect", *CALIBRATED, *change, "-o", "out", "--frames", "0:1")
    assert done.exit_code == 2 and words in done.stderr and "--overwrite" in done.stderr
    assert {p: p.read_bytes() for p in Path("out").rglob("*") if p.is_file()} == kept


def test_overwriting(invoke: Invoke, made: Path) -> None:
    run(invoke, *CALIBRATED, "-o", "out", "--maps", "npy")
    Path("out/notes.txt").write_text("mine")
    run(invoke, *CALIBRATED, "-o", "out", "--model", "ratio", "--frames", "1", "--overwrite")
    assert Detections.load("out/detections.csv").frames.tolist() == [1]
    assert not list(Path("out/maps").iterdir()) and Path("out/notes.txt").exists()


def test_warm_starts_go_on_where_they_were(invoke: Invoke, made: Path) -> None:
    warm = (*CALIBRATED, "--warm", "--maps", "npy")
    run(invoke, *warm, "-o", "whole")
    run(invoke, *warm, "--frames", "0:1", "-o", "parts")
    # stopped after the frame's own file, before what the next one starts from
    kept = Path("parts/warm.npz").read_bytes()
    run(invoke, *warm, "--frames", "0:2", "-o", "parts")
    Path("parts/warm.npz").write_bytes(kept)
    assert run(invoke, *warm, "-o", "parts")["skipped"] == 2
    run(invoke, *CALIBRATED, "--maps", "npy", "-o", "cold")
    for frame in range(4):
        name = f"maps/{frame:08d}.npy"
        assert Path("whole", name).read_bytes() == Path("parts", name).read_bytes()
    last = "maps/00000003.npy"
    assert Path("whole", last).read_bytes() != Path("cold", last).read_bytes()
    (Path("parts") / "frames/00000000.json").unlink()
    assert run(invoke, *warm, "-o", "parts")["skipped"] == 0


def test_warm_starts_from_other_frames_are_refused(invoke: Invoke, made: Path) -> None:
    warm = (*CALIBRATED, "--warm", "--maps", "npy", "-o", "out")
    run(invoke, *warm, "--frames", "0:3:2")
    kept = {p: p.read_bytes() for p in Path("out").rglob("*") if p.is_file()}
    done = invoke("detect", *warm, "--frames", "0:3")
    assert done.exit_code == 2 and "frame 2 follows there, 1 now" in done.stderr
    assert {p: p.read_bytes() for p in Path("out").rglob("*") if p.is_file()} == kept
    assert run(invoke, *warm, "--frames", "0")["skipped"] == 1
    run(invoke, *warm, "--frames", "0:3", "--overwrite")
    assert run(invoke, *warm, "--frames", "0:1")["skipped"] == 2


def test_other_pictures_to_draw_on_are_refused(invoke: Invoke, made: Path) -> None:
    pytest.importorskip("matplotlib")
    some = (*CALIBRATED, "--frames", "0", "-o", "out")
    own = ("--pictures", "--images", "made/mask-f{frame}-c%c.png")
    run(invoke, *some)
    run(invoke, *some, "--pictures")  # pictures may come later
    assert run(invoke, *some)["skipped"] == 1
    done = invoke("detect", *some, *own)
    assert done.exit_code == 2 and "images is masks there, made/mask" in done.stderr
    run(invoke, *some, *own, "--overwrite")


def test_a_broken_frame_among_warm_ones(invoke: Invoke, made: Path) -> None:
    warm = (*CALIBRATED, "--warm", "--maps", "npy", "-o", "out")
    file = made / "mask-f1-c0.png"
    good = file.read_bytes()
    file.write_bytes(good[:99])
    assert invoke("detect", *warm).exit_code == 1
    kept = Path("out/maps/00000002.npy").read_bytes()
    assert invoke("detect", *warm).exit_code == 1
    file.write_bytes(good)
    summary = run(invoke, *warm)
    assert (summary["detected"], summary["skipped"]) == (1, 3)
    assert Path("out/maps/00000002.npy").read_bytes() == kept
    assert run(invoke, *warm)["skipped"] == 4


def test_rectangles_are_kept_and_never_stale(invoke: Invoke, made: Path, monkeypatch: Any) -> None:
    from proxfield.people.cameras import Camera

    calls = []
    compute = Camera.silhouettes

    def counted(self: Camera, *args: Any, **extra: Any) -> Any:
        calls.append(self.name)
        return compute(self, *args, **extra)

    monkeypatch.setattr(Camera, "silhouettes", counted)
    run(invoke, *CALIBRATED, "-o", "out")
    assert calls == ["0", "1", "2"]
    run(invoke, *CALIBRATED, "-o", "out")
    assert calls == ["0", "1", "2"]
    # a camera that was moved
    text = Path("made/calibration.json").read_text()
    content = json.loads(text)
    cameras = content.get("cameras", content)
    cameras["1"]["t"][0] += 0.5
    Path("made/calibration.json").write_text(json.dumps(content))
    done = invoke("detect", *CALIBRATED, "-o", "out")
    assert done.exit_code == 2 and "other settings (scene)" in done.stderr
    run(invoke, *CALIBRATED, "-o", "out", "--overwrite")
    # and a file that is damaged
    Path("out/rectangles.npz").write_bytes(b"PK")
    run(invoke, *CALIBRATED, "-o", "out")
    before = len(calls)
    run(invoke, *CALIBRATED, "-o", "out")
    assert len(calls) == before


def test_interrupted_in_the_middle(invoke: Invoke, made: Path, monkeypatch: Any) -> None:
    from proxfield.cli import detect as detecting

    usual = Detector.detect

    def stop(self: Detector, *args: Any, **extra: Any) -> Any:
        if extra["frame"] == 2:
            raise KeyboardInterrupt
        return usual(self, *args, **extra)

    monkeypatch.setattr(detecting.Detector, "detect", stop)
    done = invoke("detect", *CALIBRATED, "-o", "out")
    assert done.exit_code == 130
    assert "interrupted; 2 frames are left, run the same again to go on" in done.stderr
    assert Detections.load("out/detections.csv").frames.tolist() == [0, 1]
    monkeypatch.setattr(detecting.Detector, "detect", usual)
    assert run(invoke, *CALIBRATED, "-o", "out")["skipped"] == 2


KILLED = """
import os, signal, sys
from pathlib import Path
usual, last = Path.replace, sys.argv[1]
def replace(self, target):
    if str(target).endswith(last):
        os.kill(os.getpid(), signal.SIGKILL)
    return usual(self, target)
Path.replace = replace
sys.argv = ["proxfield", *sys.argv[2:]]
from proxfield.__main__ import main
main()
"""
"""A process that is killed just before a file takes its name."""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize(
    ("last", "left"),
    [
        ("maps/00000002.npy", 2),
        ("frames/00000002.json", 2),
        ("warm.npz", 0),
        ("detections.csv", 4),
        ("settings.json", 0),
    ],
)
def test_killed_at_any_moment(
    invoke: Invoke, made: Path, environment: dict[str, str], last: str, left: int
) -> None:
    args = (*CALIBRATED, "--maps", "npy", *(["--warm"] if last == "warm.npz" else []))
    command = [sys.executable, "-c", KILLED, last, "detect", *args, "-o", "out"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    whole = run(invoke, *args, "-o", "whole")
    summary = run(invoke, *args, "-o", "out")
    assert summary["skipped"] == left
    assert summary["detections"] == whole["detections"]
    for name in ("detections.csv", "detections.json", *(f"maps/{k:08d}.npy" for k in range(4))):
        assert Path("out", name).read_bytes() == Path("whole", name).read_bytes()


# ---- bad input ----


def test_a_rectangle_outside_of_the_image(invoke: Invoke, made: Path) -> None:
    pom = made / "scene.pom"
    text = pom.read_text()
    pom.write_text(text + "RECTANGLE 1 4 90 60 96 71\n")
    line = text.count("\n") + 1
    message = refuse(invoke, "made/scene.pom")
    assert f"made/scene.pom:{line}: the rectangle 90 60 96 71 reaches outside" in message
    run(invoke, "made/scene.pom", "--clip", "--frames", "0", "-o", "clipped")


def test_a_camera_without_masks(invoke: Invoke, made: Path) -> None:
    for file in made.glob("*-c1.png"):
        file.unlink()
    assert "camera 1 has no masks, expected files like" in refuse(invoke, "made/scene.pom")
    run(invoke, "made/scene.pom", "--cameras", "0,2", "-o", "without")
    assert "has no camera 7" in refuse(invoke, "made/scene.pom", "--cameras", "0,7")


def test_masks_of_another_size(invoke: Invoke, made: Path) -> None:
    from PIL import Image

    Image.fromarray(np.zeros((10, 12), dtype=np.uint8)).save(made / "mask-f0-c2.png")
    message = refuse(invoke, "made/scene.pom")
    assert "mask-f0-c2.png: the mask has 12×10 pixels, expected 96×72" in message


def test_a_missing_frame(invoke: Invoke, made: Path) -> None:
    (made / "mask-f2-c1.png").unlink()
    for args in (("made/scene.pom",), CALIBRATED):
        message = refuse(invoke, *args)
        assert "mask-f2-c1.png: no such file: frame 2 of camera 1 is missing" in message
    run(invoke, "made/scene.pom", "--missing", "skip", "-o", "skipped")
    assert "frame 9" in refuse(invoke, "made/scene.pom", "--frames", "9")


def test_a_contradicting_calibration(invoke: Invoke, made: Path) -> None:
    file = made / "calibration.json"
    content = json.loads(file.read_text())
    cameras = content.get("cameras", content)
    cameras["1"]["R"][0] = [5.0, 0.0, 0.0]
    file.write_text(json.dumps(content))
    assert "calibration.json: camera 1: R isn't a rotation" in refuse(invoke, *CALIBRATED)


@pytest.mark.parametrize("frame", [0, 2])
def test_a_truncated_picture(invoke: Invoke, made: Path, frame: int) -> None:
    file = made / f"mask-f{frame}-c1.png"
    file.write_bytes(file.read_bytes()[:120])
    if frame == 0:  # found before anything is written
        assert "mask-f0-c1.png" in refuse(invoke, "made/scene.pom")
        return
    done = invoke("detect", "made/scene.pom", "-o", "out")
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1 and "frame 2: " in done.stderr
    assert "mask-f2-c1.png" in done.stderr
    assert Detections.load("out/detections.csv").frames.tolist() == [0, 1, 3]
    assert not Path("out/frames/00000002.json").exists()
    Path("out/frames/00000003.json").unlink()  # as if the run had been stopped there
    done = invoke("detect", "made/scene.pom", "-o", "out")
    assert done.exit_code == 1 and "mask-f2-c1.png" in done.stderr
    assert Path("out/frames/00000003.json").exists()


def test_no_location_is_visible(invoke: Invoke, made: Path) -> None:
    assert "no location is visible" in refuse(
        invoke, *CALIBRATED[:4], "--region=5000,5000,5010,5010", "--masks", MASKS
    )
    Path("empty.pom").write_text("ROOM 96 72 3 5\n")
    assert "empty.pom: no location is visible" in refuse(invoke, "empty.pom", "--masks", MASKS)


def test_an_unreadable_video(invoke: Invoke, made: Path) -> None:
    pytest.importorskip("cv2", reason="videos need OpenCV")
    for k in range(3):
        Path(f"{k}.mp4").write_bytes(b"no video" * 100)
    message = refuse(invoke, "made/scene.pom", "--video", "%c.mp4")
    assert "0.mp4: the video of camera 0: can't be read as a video" in message
    message = refuse(invoke, "made/scene.pom", "--video", "0.mp4", "--video", "1.mp4")
    assert "2 videos for 3 cameras" in message


def test_videos(invoke: Invoke, made: Path) -> None:
    cv2 = pytest.importorskip("cv2", reason="videos need OpenCV")
    square = simulate("square", people=4, cameras=3, size=(96, 72), spacing=1.0, seed=3, rate=5)
    rng = np.random.default_rng(0)
    for k in range(3):
        out = cv2.VideoWriter(f"{k}.avi", cv2.VideoWriter_fourcc(*"MJPG"), 5, (96, 72))
        for frame in range(12):
            picture = rng.normal(60, 3, (72, 96, 3))
            if frame >= 6:
                picture[square.masks(frame)[k] > 0] = 220
            out.write(np.clip(picture, 0, 255).astype(np.uint8))
        out.release()
    some = ("--video", "%c.avi", "--frames", "5:9")
    run(invoke, "made/scene.pom", *some, "-o", "one")
    found = Detections.load("one/detections.csv")
    assert found.frames.tolist() == [5, 6, 7, 8, 9] and (found.frame > 5).all() and len(found) > 3
    run(invoke, "made/scene.pom", *some, "--jobs", "2", "-o", "two")
    assert Path("one/detections.csv").read_text() == Path("two/detections.csv").read_text()
    if pytest.importorskip("matplotlib"):
        run(invoke, "made/scene.pom", *some, "-o", "one", "--movie", "out.mp4")
        assert Path("out.mp4").stat().st_size > 1000


def test_a_video_with_fewer_frames_than_its_header_says(
    invoke: Invoke, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from proxfield.cli import detect_frames
    from proxfield.io.video import EndOfVideoError

    class Short:
        def __init__(self, *_: Any) -> None:
            pass

        def frames(self) -> list[int]:
            return list(range(6))

        def read(self, frame: int) -> list[np.ndarray]:
            if frame >= 4:
                raise EndOfVideoError(f"frame {frame} is missing", 4)
            return [np.zeros((72, 96))] * 3

    monkeypatch.setattr(detect_frames, "VideoMasks", Short)
    whole = ("made/scene.pom", "--video", "%c.avi", "-o", "out", "--passes", "1")
    pom = Path("made/scene.pom")
    lines = [x for x in pom.read_text().splitlines() if not x.startswith("PROCESS")]
    pom.write_text("\n".join(lines) + "\n")
    first = invoke("detect", *whole, "--json")
    assert first.exit_code == 0
    assert "note: frame 4 is missing: 4 frames instead of 6" in first.stderr
    summary = json.loads(first.stdout)
    assert (summary["frames"], summary["detected"]) == (4, 4)
    summary = run(invoke, *whole)  # finished
    assert (summary["frames"], summary["skipped"]) == (4, 4)
    done = invoke("detect", *whole, "--frames", "0:5")  # asked for by number
    assert done.exit_code != 0 and "frame 4 is missing" in done.stderr


@pytest.mark.parametrize("prior", ["0", "1", "-0.5", "nan", "zeros.npy", "short.npy", "text.npy"])
def test_priors_of_0_or_1(invoke: Invoke, made: Path, prior: str) -> None:
    values = np.full(441, 0.01)
    np.save("short.npy", values[:9])
    values[5] = 0.0
    np.save("zeros.npy", values)
    Path("text.npy").write_text("0.5")
    message = refuse(invoke, "made/scene.pom", f"--prior={prior}")
    words = {"zeros.npy": "location 5 has 0", "short.npy": "has 9 numbers for 441 locations"}
    assert words.get(prior, "expected") in message


def test_a_pom_file_with_a_prior_of_1(invoke: Invoke, made: Path) -> None:
    with (made / "scene.pom").open("a") as file:
        file.write("PRIOR 1\n")
    assert "PRIOR is '1', expected a probability above 0" in refuse(invoke, "made/scene.pom")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "expected SCENE.pom or --calibration"),
        (("made/scene.pom", "--calibration", "x.json"), "expected SCENE.pom or --calibration"),
        (("--calibration", "made/calibration.json"), "needs --grid"),
        (CALIBRATED[:5], "expected --masks, --video or --boxes"),
        (("made/scene.pom", "--masks", "a", "--boxes", "b"), "expected one of them"),
        (("made/scene.pom", "--grid", "1"), "--grid and --region together"),
        (("made/scene.pom", "--prior", "0.1", "--density", "1"), "expected one of them"),
        (("made/scene.pom", "--density", "0.01"), "--density with a .pom needs --grid"),
        (("made/scene.pom", "--person-height", "1.8"), "--person-height goes with --calibration"),
        (("made/scene.pom", "--person-radius", "0.3"), "--person-radius goes with --calibration"),
        (("made/scene.pom", "--min-score", "0.5"), "--min-score goes with --boxes"),
        ((*CALIBRATED, "--clip"), "--clip goes with a .pom"),
        (("made/scene.pom", "--warm", "--jobs", "2"), "--jobs must be 1"),
        (("made/scene.pom", "--images", "x%f.png"), "goes with --pictures"),
        (("made/scene.pom", "--rule", "original", "--model", "exact"), "needs --model ratio"),
        (("made/scene.pom", "--rule", "nothing"), "nothing"),
        (("made/scene.pom", "--set", "first=7"), "first"),
        (("made/scene.pom", "--frames", "9:3"), "--frames"),
        (("made/scene.pom", "--scale", "0"), "--scale"),
        (("made/scene.pom", "--miss", "0.9", "--false-alarm", "0.5"), "add up to 1 or more"),
        (("made/scene.pom", "--device", "abacus"), "abacus"),
        (("made/scene.pom", "--masks", "mask.png"), "place for the frame"),
        (("nothing.pom",), "nothing.pom: no such file"),
        (("--calibration", "no.json", "--grid", "1", "--masks", MASKS), "no.json: no such file"),
        ((*CALIBRATED[:4], "--region=3,3,1,1", "--masks", MASKS), "smallest x and y first"),
    ],
)
def test_bad_options(invoke: Invoke, made: Path, args: tuple[str, ...], words: str) -> None:
    assert words in refuse(invoke, *args)


def test_folders_of_somebody_else(invoke: Invoke, made: Path) -> None:
    Path("file").write_text("")
    done = invoke("detect", "made/scene.pom", "-o", "file")
    assert done.exit_code == 2 and "a file is in the way" in done.stderr
    Path("other/frames").mkdir(parents=True)
    Path("other/frames/1.json").write_text("{}")
    done = invoke("detect", "made/scene.pom", "-o", "other")
    assert done.exit_code == 2 and "no settings.json" in done.stderr
    Path("other/settings.json").write_text("{")
    done = invoke("detect", "made/scene.pom", "-o", "other")
    assert done.exit_code == 2 and "settings.json: -o: can't be read" in done.stderr


@pytest.mark.parametrize(
    "wrong", [("--pool", "0.8"), ("--rule", "sweep", "--model", "ratio"), ("--rule", "colored")]
)
def test_settings_that_do_not_fit_leave_results_alone(
    invoke: Invoke, made: Path, wrong: tuple[str, ...]
) -> None:
    run(invoke, *CALIBRATED, "-o", "kept")
    before = Path("kept/detections.csv").read_bytes()
    refuse(invoke, *CALIBRATED, *wrong, "--overwrite", "-o", "kept")
    assert Path("kept/detections.csv").read_bytes() == before
    refuse(invoke, *CALIBRATED, *wrong, "-o", "other")
    assert not Path("other").exists()
    run(invoke, *CALIBRATED, "--radius", "0.3", "-o", "close")
