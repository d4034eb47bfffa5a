"""A folder with the files that pages take for granted."""

from __future__ import annotations

import shutil
from pathlib import Path

import materials
import numpy as np
import pytest


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("materials")
    materials.make(folder)
    return folder


@pytest.fixture
def folder(
    request: pytest.FixtureRequest, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A fresh copy of the files, as the current folder."""
    from PIL import Image

    place = tmp_path / "page"
    shutil.copytree(made, place)
    if request.node.callspec.params["name"].endswith("large-images.md"):  # photo.npy is the image
        shutil.copy(place / "photo.npy", place / "photo_probs.npy")
        np.save(place / "photo.npy", np.asarray(Image.open(place / "photo.jpg")))
    monkeypatch.chdir(place)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    return place
