"""Characters from fonts: deterministic, disjoint, and clear without fonts."""

import sys

import numpy as np
import pytest

from proxfield.errors import InputError, MissingDependencyError
from proxfield.learn import characters
from proxfield.learn.characters import gb2312, hole_mask, make_characters, write_characters

pytest.importorskip("PIL")
needs_fonts = pytest.mark.skipif(
    len(characters.installed_fonts()) < 2, reason="needs two fonts with Chinese characters"
)


def test_the_characters_are_those_of_the_standard():
    every = gb2312()
    assert len(every) == len(set(every)) == 6763
    assert every.startswith("啊阿埃")


@needs_fonts
def test_the_same_arguments_give_the_same_images():
    first, second = make_characters(4, 2, seed=3), make_characters(4, 2, seed=3)
    np.testing.assert_array_equal(first.train.images, second.train.images)
    assert first.test.text == second.test.text
    assert make_characters(4, 2, seed=4).train.text != first.train.text


@needs_fonts
def test_sets_have_no_characters_in_common():
    names = list(characters.installed_fonts())
    sets = make_characters(30, 10, held_out=names[-1])
    assert sets.held_out is not None
    parts = [set(s.text) for s in (sets.train, sets.test, sets.held_out)]
    assert len(set.union(*parts)) == sum(map(len, parts)) == 50
    assert set(sets.held_out.fonts) == {names[-1]}
    assert names[-1] not in {*sets.train.fonts, *sets.test.fonts}


@needs_fonts
def test_images_have_ink_in_the_hole():
    made = make_characters(12, 1, hole="large").train
    assert made.images.shape == made.masks.shape == (12, 72, 72)
    assert set(np.unique(made.images)) == {0, 1}
    assert 0.2 < made.images[made.masks].mean() < 0.7
    assert made.images[:, 0].mean() < 0.2  # borders are mostly white
    assert len({image.tobytes() for image in made.images}) == 12


def test_a_machine_without_fonts_gets_a_clear_error(monkeypatch, tmp_path):
    monkeypatch.setenv("PROXFIELD_FONTS", str(tmp_path))
    with pytest.raises(InputError, match="apt install fonts-arphic-ukai"):
        make_characters(2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hole": "huge"}, "expected one of: small, large"),
        ({"fonts": ["comic"]}, "unknown font 'comic'"),
        ({"train": 0}, "train=0"),
        ({"train": 6000}, "expected at most"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        make_characters(**{"train": 2, "test": 1, **arguments})


def test_holes_are_as_large_as_they_should_be():
    assert round(100 * hole_mask("small").mean(), 1) == 9.8
    assert round(100 * hole_mask("large").mean(), 1) == 22.8


@needs_fonts
def test_folders_read_as_they_were_written(tmp_path):
    from proxfield.io.images import read_labels

    sets = make_characters(3, 2)
    write_characters(sets, tmp_path / "made", hole="small", seed=0)
    image, palette = read_labels(tmp_path / "made/train/0001.png")
    np.testing.assert_array_equal(image, sets.train.images[1])
    assert palette is not None and palette[:6] == [255, 255, 255, 0, 0, 0]
    mask = read_labels(tmp_path / "made/mask.png")[0]
    np.testing.assert_array_equal(mask > 0, sets.train.masks[0])
    lines = (tmp_path / "made/characters.csv").read_text(encoding="utf-8").splitlines()
    assert lines[1] == f"train/0000.png,{sets.train.text[0]},{sets.train.fonts[0]}"
    assert len(lines) == 6
    with pytest.raises(InputError, match="isn't empty"):
        write_characters(sets, tmp_path / "made", hole="small", seed=0)
    assert [p.name for p in tmp_path.iterdir()] == ["made"]


def test_a_machine_without_pillow_gets_a_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    characters.open_font.cache_clear()
    with pytest.raises(MissingDependencyError, match="characters need Pillow: pip install"):
        characters.open_font("ukai", 10)
