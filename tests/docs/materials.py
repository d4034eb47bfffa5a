"""Files that the pages' commands and code take for granted: photographs, maps, models."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

SHAPE = (36, 48)
N_LABELS = 21
CLASSES = 5  # of the labels, those that occur


def scene(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An image (uint8), its true labels and a classifier's probabilities."""
    rng = np.random.default_rng(seed)
    rows, columns = np.indices(SHAPE)
    truth = (columns * CLASSES // SHAPE[1] + (rows > SHAPE[0] // 2)) % CLASSES
    colors = np.array([[60, 60, 200], [200, 60, 60], [60, 200, 60], [200, 200, 60], [90, 90, 90]])
    image = colors[truth] + rng.normal(scale=10, size=(*SHAPE, 3))
    logits = 2.0 * np.eye(N_LABELS)[truth] + rng.normal(scale=1.5, size=(*SHAPE, N_LABELS))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    return image.clip(0, 255).astype(np.uint8), truth.astype(np.uint8), probabilities


def write_bands(path: Path, array: np.ndarray) -> None:
    """Write a GeoTIFF with one band per channel."""
    import rasterio

    place = rasterio.Affine(10.0, 0.0, 5e5, 0.0, -10.0, 5e6)
    height, width, count = array.shape
    with rasterio.open(
        path, "w", driver="GTiff", height=height, width=width, count=count, dtype=array.dtype,
        crs="EPSG:32632", transform=place,
    ) as file:  # fmt: skip
        file.write(np.moveaxis(array, -1, 0))


def make(folder: Path) -> None:
    """Write everything into a folder."""
    import nibabel
    import tifffile
    import zarr
    from PIL import Image

    import proxfield as pf

    for name in ("photos", "maps", "probs", "truth", "more"):
        (folder / name).mkdir()
    for seed, stem in enumerate(("a", "b", "c", "d")):
        image, truth, probabilities = scene(seed)
        Image.fromarray(image).save(folder / "photos" / f"{stem}.png")
        Image.fromarray(probabilities.argmax(axis=-1).astype(np.uint8)).save(
            folder / "maps" / f"{stem}.png"
        )
        Image.fromarray(truth).save(folder / "truth" / f"{stem}.png")
        np.save(folder / "probs" / f"{stem}.npy", probabilities)
    shutil.copy(folder / "photos" / "a.png", folder / "more" / "a.png")

    image, truth, probabilities = scene(9)
    Image.fromarray(image).save(folder / "photo.jpg")
    np.save(folder / "photo.npy", probabilities)
    np.save(folder / "probs.npy", probabilities)
    strokes = np.full(SHAPE, 255, dtype=np.uint8)
    strokes[5:8, 4:9] = truth[5:8, 4:9]
    Image.fromarray(strokes).save(folder / "strokes.png")
    write_bands(folder / "scene.tif", image)
    write_bands(folder / "scene_probs.tif", probabilities.astype(np.float32))
    np.save(folder / "energies.npy", np.random.default_rng(3).normal(size=(12, 10, 2)))

    large = np.tile(image, (8, 8, 1))[:256, :256]
    tifffile.imwrite(folder / "slide.svs", large, tile=(64, 64), photometric="rgb")
    store = zarr.open(
        str(folder / "probs.zarr"), mode="w", shape=(256, 256, N_LABELS), chunks=(64, 64, N_LABELS),
        dtype="f4",
    )  # fmt: skip
    store[:] = np.tile(probabilities, (8, 8, 1))[:256, :256]

    volume = np.random.default_rng(1).normal(100, 20, size=(8, 9, 6)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), folder / "head.nii.gz")
    np.save(folder / "head.npy", np.random.default_rng(2).normal(size=(8, 9, 6, 2)))

    pf.write_uai(pf.generate.grid(4, 5, seed=1), folder / "model.uai")
    pf.write_uai(pf.generate.grid(4, 5, seed=1), folder / "grid.uai")
    boxes = "RECTANGLE 0 0 2 2 5 9\nRECTANGLE 1 1 1 1 4 8\n"
    (folder / "test.pom").write_text(f"ROOM 16 12 2 2\n{boxes}")
    (folder / "rectangles.pom").write_text(boxes)
    (folder / "proba-f160.dat").write_text("0 0.25\n1 0.75\n")
    (folder / "crf.toml").write_text("bilateral_weight = 5.0\nmax_iters = 5\n")
    (folder / "your_script.py").write_text(
        "import numpy as np\nimport pydensecrf.densecrf as dcrf\n"
        "d = dcrf.DenseCRF2D(6, 5, 2)\nd.setUnaryEnergy(np.ones((2, 30), dtype=np.float32))\n"
        "d.addPairwiseGaussian(sxy=3, compat=3)\nprint(np.array(d.inference(2)).shape)\n"
    )
