"""Decision trees: the compiled ones against the reference, and what they see."""

import numpy as np
import pytest
import reference

from proxfield.errors import InputError, MemoryLimitError
from proxfield.learn.decision_tree_field import check_images
from proxfield.learn.trees import (
    HoledImage,
    Tree,
    feature_offsets,
    grow,
    log_frequencies,
    pair_offsets,
)


def draw(seed, n=200, n_features=5, n_values=3, n_classes=3):
    rng = np.random.default_rng(seed)
    features = rng.integers(0, n_values, (n, n_features)).astype(np.uint8)
    noise = rng.random(n) < 0.3
    classes = np.where(noise, rng.integers(0, n_classes, n), features[:, 0] % n_classes)
    return features, np.where(features[:, 1] == 1, classes, 0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("least", [1, 8])
def test_compiled_trees_are_those_of_the_reference(seed, least):
    n_values, n_classes = 2 + seed % 3, 2 + seed % 4
    features, classes = draw(seed, n_values=n_values, n_classes=n_classes)
    grown = grow(features, classes, n_values, n_classes, 12, least)
    expected = reference.grow(features, classes, n_values, n_classes, 12, least)
    np.testing.assert_array_equal(grown.tests, expected.tests)
    np.testing.assert_array_equal(grown.children, expected.children)


def test_equal_features_are_decided_for_the_first():
    features, classes = draw(0)
    doubled = np.concatenate([features, features], axis=1)
    grown = grow(doubled, classes, 3, 3, 10)
    np.testing.assert_array_equal(grown.tests, grow(features, classes, 3, 3, 10).tests)


def test_the_first_test_is_the_best_by_brute_force():
    features, classes = draw(3)

    def entropy(labels):
        share = np.bincount(labels, minlength=3) / max(1, len(labels))
        return -len(labels) * sum(p * np.log2(p) for p in share if p > 0)

    gains = {
        (f, v): entropy(classes)
        - entropy(classes[features[:, f] == v])
        - entropy(classes[features[:, f] != v])
        for f in range(5)
        for v in range(3)
    }
    assert tuple(grow(features, classes, 3, 3, 2).tests[0]) == max(gains, key=gains.get)


def test_trees_stop_where_nothing_is_gained():
    features = np.zeros((50, 4), dtype=np.uint8)
    tree = grow(features, np.arange(50) % 2, 3, 2, 16)
    assert tree.n_leaves == 1
    assert reference.apply(tree, features).tolist() == [0] * 50


def test_leaves_have_enough_samples_and_no_more_than_allowed():
    features, classes = draw(1, n=500)
    tree = grow(features, classes, 3, 3, 9, least=20)
    counts = np.bincount(reference.apply(tree, features))
    assert len(counts) == tree.n_leaves <= 9
    assert counts.min() >= 20


def test_growing_lowers_the_log_loss():
    features, classes = draw(2, n=1000)
    losses = []
    for leaves in (1, 2, 4, 8):
        tree = grow(features, classes, 3, 3, leaves)
        at = reference.apply(tree, features)
        losses.append(-log_frequencies(at, classes, tree.n_leaves, 3)[at, classes].mean())
    assert sorted(losses, reverse=True) == losses
    assert losses[-1] < 0.8 * losses[0]


def image(seed=0, shape=(9, 11), n_labels=2, reach=4):
    rng = np.random.default_rng(seed)
    hidden = np.zeros(shape, dtype=bool)
    hidden[3:6, 4:8] = True
    return HoledImage(rng.integers(0, n_labels, shape), hidden, n_labels, reach)


def test_features_are_what_is_seen():
    holed, offsets = image(), np.array([[0, 1], [-2, 0], [4, -4]])
    rows, columns = np.nonzero(holed.hidden)
    found = holed.features(rows, columns, offsets)
    for k, (r, c) in enumerate(zip(rows, columns, strict=True)):
        for f, (down, right) in enumerate(offsets):
            i, j = r + down, c + right
            inside = 0 <= i < 9 and 0 <= j < 11
            seen = holed.labels[i, j] if inside and not holed.hidden[i, j] else 2
            assert found[k, f] == seen


def test_leaves_of_pixels_are_those_of_their_features():
    holed, offsets = image(), feature_offsets(20, 4)
    rows, columns = np.nonzero(holed.hidden)
    features = holed.features(rows, columns, offsets)
    tree = grow(features, holed.labels[rows, columns], 3, 2, 6)
    assert tree.n_leaves > 2
    np.testing.assert_array_equal(
        holed.leaves(tree, rows, columns, offsets), reference.apply(tree, features)
    )


def test_hidden_labels_change_nothing_that_is_seen():
    holed = image()
    other = HoledImage(np.where(holed.hidden, 1 - holed.labels, holed.labels), holed.hidden, 2, 4)
    np.testing.assert_array_equal(holed.padded, other.padded)


@pytest.mark.parametrize("offset", [(0, 1), (2, -3), (-1, 4), (3, 0)])
def test_pairs_are_those_with_a_hidden_pixel(offset):
    holed = image()
    found = set(zip(*(x.tolist() for x in holed.pairs(offset)), strict=True))
    expected = {
        (r, c)
        for r in range(9)
        for c in range(11)
        if 0 <= r + offset[0] < 9
        and 0 <= c + offset[1] < 11
        and (holed.hidden[r, c] or holed.hidden[r + offset[0], c + offset[1]])
    }
    assert found == expected


def test_offsets_are_distinct_and_pairs_are_not_counted_twice():
    offsets = feature_offsets(256)
    assert len({tuple(o) for o in offsets.tolist()}) == 256
    assert (offsets != 0).any(axis=1).all()
    assert [0, 1] in offsets.tolist()
    pairs = {tuple(o) for o in pair_offsets().tolist()}
    assert len(pairs) == 32
    assert not pairs & {(-r, -c) for r, c in pairs}
    with pytest.raises(InputError, match="expected at most 24"):
        feature_offsets(25, 2)


def test_a_tree_without_tests_has_one_leaf():
    tree = Tree(np.array([[-1, -1]]), np.array([[-1, -1]]))
    assert reference.apply(tree, np.zeros((3, 0), dtype=np.uint8)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("images", "masks", "message"),
    [
        ([], [], "no images"),
        (np.zeros((2, 3, 3), int), np.zeros((1, 3, 3), bool), "1 masks for 2 images"),
        (np.zeros((1, 3), int), np.zeros((1, 3), bool), "image 0 has shape"),
        (np.zeros((1, 3, 3), int), np.zeros((2, 2), bool), "its mask"),
        (np.zeros((1, 3, 3)), np.zeros((3, 3), bool), "whole numbers"),
        (np.full((1, 3, 3), 2), np.zeros((3, 3), bool), "the label 2, expected 0 to 1"),
        (np.full((1, 3, 3), -1), np.zeros((3, 3), bool), "the label -1, expected 0 to 1"),
    ],
)
def test_bad_images_are_refused(images, masks, message):
    with pytest.raises(InputError, match=message):
        check_images(images, masks, 2, known=True)


def test_trees_that_do_not_fit_in_memory_are_refused():
    features, classes = draw(0)
    with pytest.raises(MemoryLimitError, match="a tree of 32 leaves for 10000000000 classes"):
        grow(features, classes, 3, 10**10, 32)
    with pytest.raises(MemoryLimitError, match="a tree of 1000000000000 leaves"):
        grow(features, classes, 3, 3, 10**12)
