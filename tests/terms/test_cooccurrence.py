"""Class co-occurrence: counts, both forms of the term against enumeration, and descent."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from helpers import (
    KERNELS,
    VARIANTS,
    Array,
    exact_free_energy,
    exact_hessian,
    exact_log_z,
    infer,
    labellings,
    log_sum_exp,
    projected,
    random_marginals,
)
from proxfield.core.terms import cooccurrence as module
from proxfield.core.terms.base import offers
from proxfield.errors import UnsupportedError
from standins import DATA

CAMVID = DATA / "dense" / "camvid_unary"

Counts = pf.CooccurrenceStatistics
TOGETHER = [v for v in VARIANTS if not v.startswith(("sweep", "colored"))]
"""Variants that move all variables at once: all that a term without tables allows."""


def counts(n_labels: int, seed: int = 0) -> Counts:
    rng = np.random.default_rng(seed)
    maps = [rng.choice(n_labels, size=3) for _ in range(20)]
    return Counts.from_label_maps(maps, n_labels)


def make(
    latent: str, *, pixels: int = 3, n_labels: int = 4, seed: int = 0, **options: Any
) -> pf.Field:
    """A stranger, the pixels in a chain, a stranger, and the presences if they are variables."""
    options = {"kappa": 1.7, "beta": 1.3, "first": 1, **options}
    if latent == "variables":
        options["presence"] = pixels + 2
    term = pf.Cooccurrence(counts(n_labels, seed), pixels=pixels, latent=latent, **options)
    rng = np.random.default_rng(seed)
    last = [2] * len(term.classes) if latent == "variables" else []
    edges = [[i, i + 1] for i in range(pixels + 1)]
    return pf.Field(
        [2, *[n_labels] * pixels, 3, *last],
        terms=[
            term,
            pf.Unary(rng.normal(size=(pixels, n_labels)), np.arange(1, pixels + 1)),
            pf.Potts(edges, rng.normal(size=len(edges))),
        ],
    )


def only(field: pf.Field) -> pf.Field:
    """The same field with its first term alone."""
    return pf.Field(field.cardinalities, terms=field.terms[:1])


def brute_energy(term: pf.Cooccurrence, x: Array, y: Array) -> float:
    """The definition, one pixel and one pair at a time."""
    shown = x[term.first : term.first + term.pixels]
    here = dict(zip(term.classes.tolist(), y.tolist(), strict=True))
    e = sum(term.kappa for label in shown if here.get(int(label), 1) == 0)
    for a, b in itertools.combinations(range(len(y)), 2):
        e += float(term.weights[a, b]) * y[a] * y[b]
    return float(e)


# ---- counts ----


def test_counting_label_maps() -> None:
    maps = [[[0, 0, 1], [255, 1, 1]], [[2, 2]], [[0, 2, 1, 1]], np.zeros((0, 3), dtype=int)]
    found = Counts.from_label_maps(maps, 4)
    assert (found.images, found.n_labels, found.min_pixels) == (4, 4, 1)
    assert found.presence.tolist() == [2, 2, 2, 0]
    assert found.pairs.tolist() == [[2, 2, 1, 0], [2, 2, 1, 0], [1, 1, 2, 0], [0, 0, 0, 0]]
    assert Counts.from_label_maps(maps, 4, min_pixels=2).presence.tolist() == [1, 2, 1, 0]


def test_counting_finds_the_labels() -> None:
    maps = [np.array([[3, -1]], dtype=np.int16), np.array([[7]], dtype=np.uint8)]
    assert Counts.from_label_maps(maps, ignore=(-1, 7)).n_labels == 4
    assert Counts.from_label_maps((m for m in maps), ignore=[-1]).n_labels == 8


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int64", "int32"])
def test_counting_any_kind_of_integer(kind: str) -> None:
    one = np.array([[5, 0], [5, 5]], dtype=kind)
    assert Counts.from_label_maps([one], 6, min_pixels=2).presence.tolist() == [0] * 5 + [1]


@pytest.mark.parametrize(
    ("maps", "options", "words"),
    [
        ([[0, 3]], {"n_labels": 3}, "label map 0 holds the label 3, expected 0 to 2"),
        ([[0], [-2]], {"n_labels": 3}, "label map 1 holds the label -2"),
        ([[0, 255]], {"n_labels": 3, "ignore": ()}, "the label 255"),
        ([[0.5]], {}, "label map 0 holds float64"),
        ([np.array([10**15])], {}, "the label 1000000000000000"),
        ([], {}, "no label"),
        ([[255]], {}, "no label"),
        ([[0]], {"n_labels": 0}, "n_labels=0"),
        ([[0]], {"n_labels": 2.5}, "n_labels=2.5"),
        ([[0]], {"min_pixels": 0}, "min_pixels=0"),
        ([[0]], {"ignore": ["x"]}, "ignore='x'"),
    ],
)
def test_bad_label_maps(maps: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(pf.InputError) as caught:
        Counts.from_label_maps([np.array(m) for m in maps], **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((3, [1, -1], [[1, 0], [0, -1]]), "negative"),
        ((3, [1, 4], [[1, 1], [1, 4]]), "class 1 is in 4 images, but there are 3"),
        ((3, [2, 2], [[2, 1], [0, 2]]), "classes 0 and 1 are together in 1 images (and 0"),
        ((3, [1, 2], [[1, 2], [2, 2]]), "classes 0 and 1 are together in 2"),
        ((3, [1, 2], [[1, 1], [1, 1]]), "pair count (1, 1) is 1, expected 2"),
        ((3, [1, 2], [[1, 1, 0], [1, 2, 0]]), "shape (2, 3), expected (2, 2)"),
        ((3, [1, 2], [[1, 1], [1]]), "rectangular"),
        ((3, [1.5, 2], [[1, 1], [1, 2]]), "class counts must be integers"),
        ((3, [], np.zeros((0, 0), dtype=int)), "empty"),
        ((-1, [0], [[0]]), "images=-1"),
        ((True, [0], [[0]]), "images=True"),
        (("3", [0], [[0]]), "images='3'"),
        ((3, [1], [[1]], 0), "min_pixels=0"),
    ],
)
def test_bad_counts(args: Any, words: str) -> None:
    with pytest.raises(pf.InputError) as caught:
        Counts(*args)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pair_probabilities() -> None:
    """One added to each count; never below 1e-6; 1 for a class that was never seen."""
    found = Counts(2000000, [1999999, 1000000, 999999, 0], np.diag([1999999, 1000000, 999999, 0]))
    p = found.pair_probability()
    assert p[1, 2] == pytest.approx(1 - (1 - 1 / 1000001) * (1 - 1 / 1000000))
    assert p[0, 1] == pytest.approx(1 - (1 - 1 / 2000000) * (1 - 1 / 1000001))
    assert p[3].tolist() == [1.0] * 4
    many = Counts(10**13, [4 * 10**12] * 2, np.diag([4 * 10**12] * 2))
    assert many.pair_probability()[0, 1] == 1e-6
    both = Counts(10, [4, 8], [[4, 3], [3, 8]]).pair_probability()
    assert both[0, 1] == both[1, 0] == pytest.approx(1 - (1 - 4 / 5) * (1 - 4 / 9))


def same(a: Counts, b: Counts) -> bool:
    return (
        a.images == b.images
        and a.min_pixels == b.min_pixels
        and np.array_equal(a.presence, b.presence)
        and np.array_equal(a.pairs, b.pairs)
    )


@pytest.mark.parametrize("name", ["counts.json", "counts.json.gz"])
def test_json_round_trip(tmp_path: Path, name: str) -> None:
    found = Counts.from_label_maps([[0, 1, 1], [1, 2]], 5, min_pixels=1)
    assert same(Counts.from_json(found.to_json()), found)
    found.save(tmp_path / name)
    assert same(Counts.load(tmp_path / name), found)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def nested() -> dict[str, Any]:
    """Counts for two thresholds in one file."""
    ten = {"min_pixels": 10, "class_counts": [1, 0], "pair_counts": [[1, 0], [0, 0]]}
    one = {"min_pixels": 1, "class_counts": [2, 1], "pair_counts": [[2, 1], [1, 1]]}
    return {"classes": ["a", "b"], "n_images": 3, "ge_10": ten, "ge_1": one}


def test_json_with_several_thresholds() -> None:
    text = json.dumps(nested())
    assert Counts.from_json(text).presence.tolist() == [2, 1]
    chosen = Counts.from_json(text, min_pixels=10)
    assert (chosen.presence.tolist(), chosen.min_pixels, chosen.images) == ([1, 0], 10, 3)
    with pytest.raises(pf.InputError, match="min_pixels=5, expected one of: 1, 10"):
        Counts.from_json(text, min_pixels=5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ('{"n_images": 3,', "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        ("[1, 2]", "expected a JSON object"),
        ("{}", "some are missing"),
        ('{"n_images": 1, "class_counts": [1]}', "some are missing"),
        ('{"class_counts": [1], "pair_counts": [[1]]}', "some are missing"),
        ('{"n_images": 1, "class_counts": [null], "pair_counts": [[1]]}', "must be integers"),
        ('{"n_images": 1, "class_counts": [2], "pair_counts": [[2]]}', "there are 1"),
        ('{"n_images": 1.5, "class_counts": [1], "pair_counts": [[1]]}', "images=1.5"),
    ],
)
def test_bad_json_names_the_file(tmp_path: Path, text: str | bytes, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(pf.InputError) as caught:
        Counts.load(path)
    assert caught.value.path == str(path)
    assert "bad.json: " in str(caught.value)  # a long path is cut in its middle
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(pf.InputError, match=r"none\.json: no such file"):
        Counts.load(tmp_path / "none.json")


@pytest.mark.skipif(
    not CAMVID.is_dir(), reason=f"the counts are of published images: none at {CAMVID}"
)
def test_published_counts() -> None:
    found = Counts.load(CAMVID / "cooccurrence.json")
    assert (found.n_labels, found.images, found.min_pixels) == (11, 367, 1)
    assert Counts.load(CAMVID / "cooccurrence.json", min_pixels=100).presence[10] == 141
    term = pf.Cooccurrence(found, pixels=100, latent="implicit", always=())
    assert (
        term.weights[7, 10] > term.weights[8, 10]
    )  # fences occur with cyclists less often than cars do


# ---- both forms ----


@pytest.mark.parametrize("tables", [False, True])
def test_energies_of_labellings(tables: bool) -> None:
    field = only(make("variables", tables=tables))
    term = field.terms[0]
    assert isinstance(term, pf.Cooccurrence)
    for x in labellings(field)[::7]:
        assert field.energy(x) == pytest.approx(brute_energy(term, x, x[5:]))


@pytest.mark.parametrize("seed", range(4))
def test_implicit_sums_the_presences_out(seed: int) -> None:
    """Each labelling has the energy −log Σ_y exp(−E(x, y)), so log Z is the same."""
    explicit, implicit = make("variables", seed=seed), make("implicit", seed=seed)
    states = np.array(list(itertools.product([0, 1], repeat=3)))
    for x in labellings(implicit)[::11]:
        every = np.array([-explicit.energy(np.concatenate([x, y])) for y in states])
        assert implicit.energy(x) == pytest.approx(-log_sum_exp(every))
    assert exact_log_z(implicit) == pytest.approx(exact_log_z(explicit))


def test_implicit_is_the_least_over_all_distributions() -> None:
    """E(q) is below ⟨E(q, y)⟩_r − H(r) for any r, and above the expected energy of labellings."""
    field = only(make("implicit"))
    term, rng = field.terms[0], np.random.default_rng(1)
    states = np.array(list(itertools.product([0, 1], repeat=3)))
    for _ in range(20):
        q = random_marginals(field.layout, rng)
        e = field.expected_energy(q)
        n = q[2:14].reshape(3, 4).sum(axis=0)[1:]
        cost = [1.7 * n @ (1 - y) + 0.5 * y @ term.weights @ y for y in states]
        for _ in range(20):
            r = rng.dirichlet(np.full(8, 0.5))
            assert e <= r @ cost + (r * np.log(r)).sum() + 1e-12
        assert e == pytest.approx(-log_sum_exp(-np.array(cost)))
        assert field.free_energy(q) >= exact_free_energy(field, q) - 1e-12


@pytest.mark.parametrize("latent", ["implicit", "variables"])
@pytest.mark.parametrize("pixels", [0, 1, 63, 64, 65, 200])
def test_gradient(latent: str, pixels: int, dtype: str) -> None:
    """Against differences of the energy, for blocks that numpy passes divide in any way."""
    field = only(make(latent, pixels=pixels, n_labels=3, kappa=0.05))
    term, layout = field.terms[0], field.layout
    q = random_marginals(layout, np.random.default_rng(2)).astype(dtype)
    out = np.full(layout.size, 3.0, dtype=dtype)
    term.add_gradient(layout, q, out)
    assert out.dtype == q.dtype
    wide = q.astype(np.float64)
    h = 1e-5
    for entry in np.random.default_rng(3).permutation(layout.size)[:60]:
        ends = np.stack([wide, wide])
        ends[:, entry] += (h, -h)
        slope = (term.energy(layout, ends[0]) - term.energy(layout, ends[1])) / (2 * h)
        assert out[entry] - 3.0 == pytest.approx(slope, abs=1e-6 if dtype == "float32" else 1e-8)
    if latent == "variables":
        g = np.zeros(layout.size)
        term.add_gradient(layout, wide, g)
        assert term.energy(layout, wide) == pytest.approx(0.5 * wide @ g)


def test_many_pixels_of_single_precision_are_counted_in_double() -> None:
    """A class with a small share of many pixels: float32 sums would lose digits of its energy."""
    n = 300_007
    term = pf.Cooccurrence(counts(3), pixels=n, latent="variables")
    layout = pf.Field([*[3] * n, 2, 2], terms=[term]).layout
    pixel = np.array([0.9, 0.1 - 1e-4, 1e-4], dtype=np.float32)
    q = np.concatenate([np.tile(pixel, n), np.array([1, 0, 1, 0], dtype=np.float32)])
    expected = 20.0 * n * pixel[1:].astype(np.float64).sum()
    assert term.energy(layout, q) == pytest.approx(expected, rel=1e-12)


# ---- the bound ----


@pytest.mark.parametrize("latent", ["implicit", "variables"])
@pytest.mark.parametrize("variant", TOGETHER)
def test_results_bound_log_z(latent: str, variant: str, kernels: str, dtype: str) -> None:
    field = make(latent)
    result = infer(field, variant, kernels=kernels, dtype=dtype, max_iters=30)
    assert result.log_z_bound <= exact_log_z(field) + 1e-4
    assert result.free_energy == pytest.approx(field.free_energy(result.q), abs=1e-4)


@pytest.mark.parametrize("latent", ["implicit", "variables"])
@pytest.mark.parametrize("variant", TOGETHER)
def test_kernel_sets_agree(latent: str, variant: str) -> None:
    field = make(latent)
    ours, theirs = (infer(field, variant, kernels=k, max_iters=20, tol=0.0) for k in KERNELS)
    np.testing.assert_allclose(ours.q, theirs.q, atol=1e-6)
    np.testing.assert_allclose(ours.trace.free_energy, theirs.trace.free_energy, atol=1e-6)


@pytest.mark.parametrize("variant", ["fixed-0.7", "full-parallel", "adam", "adhoc"])
def test_tables_say_the_same(variant: str) -> None:
    """Iterated as a whole and through the kernels' tables: the same states."""
    whole, tabled = make("variables"), make("variables", tables=True)
    assert whole.lower().extras and not tabled.lower().extras
    q = random_marginals(whole.layout, np.random.default_rng(4))
    assert whole.free_energy(q) == pytest.approx(exact_free_energy(tabled, q))
    a, b = (infer(f, variant, max_iters=10, tol=0.0) for f in (whole, tabled))
    np.testing.assert_allclose(a.q, b.q, atol=1e-9)


def test_implicit_bound_is_the_better_one() -> None:
    """At equal marginals of the pixels, the best r can't be worse than independent presences."""
    explicit, implicit = make("variables"), make("implicit")
    for seed in range(10):
        q = random_marginals(explicit.layout, np.random.default_rng(seed))
        assert implicit.free_energy(q[: implicit.layout.size]) <= explicit.free_energy(q) + 1e-12


def test_evidence() -> None:
    seen = {1: 3, 0: 1}
    for latent in ("implicit", "variables"):
        field = make(latent).condition(seen)
        result = pf.infer(field, "fixed", step="certified-local")
        assert result.marginals[1][3] == 1.0
        assert result.log_z_bound <= exact_log_z(field) + 1e-9
    on = make("variables").condition({5: 1, 6: 1, 7: 0})
    assert pf.infer(on, "fixed").log_z_bound <= exact_log_z(on) + 1e-9


# ---- curvature ----


@pytest.mark.parametrize("options", [{}, {"kappa": 0.2}, {"kappa": 9.0}, {"beta": 0.0}])
@pytest.mark.parametrize("always", [(0,), (), (1, 3), (0, 1, 2), (0, 1, 2, 3)])
def test_variables_have_a_known_hessian(options: dict[str, float], always: tuple[int, ...]) -> None:
    field = only(make("variables", always=always, **options))
    term, layout = field.terms[0], field.layout
    raw = exact_hessian(field)
    hessian = projected(layout, raw)
    ends = np.linalg.eigvalsh(hessian)
    assert term.spectrum(layout) == pytest.approx((ends[0], ends[-1]), abs=1e-9)
    assert term.lipschitz(layout) == pytest.approx(np.linalg.norm(raw, 2), abs=1e-9)
    local = term.curvature(layout)
    assert local[1:4].max() <= 1.0  # pixels are never damped
    for sign in (1, -1):
        slack = np.diag(local[layout.owner]) - sign * hessian
        assert np.linalg.eigvalsh(slack)[0] >= -1e-9


def implicit_hessian(field: pf.Field, q: Array) -> Array:
    """Differences of the gradient."""
    rows, h = [], 1e-5
    for e in np.eye(field.layout.size):
        ends = [np.zeros(field.layout.size) for _ in "+-"]
        for out, s in zip(ends, (1, -1), strict=True):
            field.terms[0].add_gradient(field.layout, q + s * h * e, out)
        rows.append((ends[0] - ends[1]) / (2 * h))
    return np.stack(rows)


@pytest.mark.parametrize("seed", range(6))
def test_implicit_is_concave(seed: int) -> None:
    field = only(make("implicit", seed=seed, kappa=(0.3, 1.0, 3.0)[seed % 3]))
    term, layout = field.terms[0], field.layout
    assert not term.curvature(layout).any()
    rng = np.random.default_rng(seed)
    for _ in range(5):
        hessian = implicit_hessian(field, random_marginals(layout, rng))
        np.testing.assert_allclose(hessian, hessian.T, atol=1e-6)
        ends = np.linalg.eigvalsh(projected(layout, hessian))
        smallest, largest = term.spectrum(layout)
        assert largest == 0.0 and ends[-1] <= 1e-6
        assert smallest <= ends[0] + 1e-6
        assert np.abs(np.linalg.eigvalsh(hessian)).max() <= term.lipschitz(layout) + 1e-6


def test_implicit_spectrum_is_attained() -> None:
    """Two classes whose presences are opposite, each with probability ½: variance m/4 · ‖a‖²."""
    half = 500_000
    apart = [[2 * half, half, half], [half, half, 0], [half, 0, half]]
    never = Counts(2 * half, [2 * half, half, half], apart)
    term = pf.Cooccurrence(never, pixels=4, kappa=20.0, beta=50.0)
    field = pf.Field(4, n_labels=3, terms=[term])
    q = np.tile([0.0, 0.5, 0.5], 4)
    ends = np.linalg.eigvalsh(projected(field.layout, implicit_hessian(field, q)))
    assert ends[0] == pytest.approx(term.spectrum(field.layout)[0], rel=1e-3)


def assert_descends(result: pf.Result, dtype: str = "float64") -> None:
    f = result.trace.free_energy
    slack = (1e-5 if dtype == "float32" else 1e-10) * (1 + np.abs(f).max())
    assert np.diff(f).max() <= slack


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize("latent", ["implicit", "variables"])
def test_certified_local_steps_never_raise_f(
    latent: str, scale: float, seed: int, kernels: str, dtype: str
) -> None:
    field = make(latent, pixels=30, n_labels=5, seed=seed, kappa=scale, beta=3.0)
    result = pf.infer(
        field, "fixed", step="certified-local", kernels=kernels, dtype=dtype, max_iters=200
    )
    assert_descends(result, dtype)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_full_steps_never_raise_f_of_the_implicit_form(
    scale: float, seed: int, kernels: str, dtype: str
) -> None:
    term = pf.Cooccurrence(counts(5, seed), pixels=30, kappa=scale, beta=3.0)
    noise = np.random.default_rng(seed).normal(scale=3.0, size=(30, 5))
    field = pf.Field(30, n_labels=5, terms=[term, pf.Unary(noise)])
    result = pf.infer(field, "full-parallel", kernels=kernels, dtype=dtype)
    assert_descends(result, dtype)
    assert result.converged
    fixed = pf.infer(field, "fixed", kernels=kernels, dtype=dtype)
    assert (fixed.iterations, fixed.free_energy) == (result.iterations, result.free_energy)


def test_full_steps_can_raise_f_of_the_other_form() -> None:
    """Else the damping of the presences would be for nothing."""
    field = make("variables", pixels=30, n_labels=5, kappa=20.0, beta=3.0)
    f = pf.infer(field, "full-parallel", max_iters=50, init="random").trace.free_energy
    assert np.diff(f).max() > 0.1


def test_rules_that_visit_variables_need_tables() -> None:
    for latent in ("implicit", "variables"):
        field = make(latent)
        assert not offers(field.terms[0], "lower")
        with pytest.raises(UnsupportedError, match=r"visits|neighbors"):
            pf.infer(field, "sweep")
        assert pf.infer(field, max_iters=60).log_z_bound <= exact_log_z(field) + 1e-9
    field = make("variables", tables=True)
    for rule in ("sweep", "colored", "auto"):
        assert pf.infer(field, rule).log_z_bound <= exact_log_z(field) + 1e-9


# ---- the envelope ----


def random_costs(m: int, scale: float, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    weights = np.triu(rng.exponential(scale, size=(m, m)), 1)
    return rng.exponential(2 * scale, size=m), weights + weights.T


@pytest.mark.parametrize("m", [0, 1, 5, 12])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 100.0, 1e6])
def test_deciding_classes_changes_nothing(
    m: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent, weights = random_costs(m, scale, m)
    e, off = module.envelope(absent, weights)
    monkeypatch.setattr(module, "SATURATION_ENERGY", np.inf)
    plain, probabilities = module.envelope(absent, weights)
    assert e == pytest.approx(plain, rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(off, probabilities, atol=1e-9)


def test_large_energies_leave_small_numbers_alone() -> None:
    """Two classes of a million pixels are there; a third that may be keeps its probability."""
    weights = np.array([[0.0, 5e4, 3.0], [5e4, 0.0, 1.0], [3.0, 1.0, 0.0]])
    e, off = module.envelope(np.array([2e7, 1e7, 2.0]), weights)
    assert off[:2].tolist() == [0.0, 0.0]
    assert off[2] == pytest.approx(1 / (1 + np.exp(-2.0)))
    assert e == pytest.approx(5e4 + 2.0 - np.log1p(np.exp(-2.0)), rel=1e-14)


@pytest.mark.parametrize("scale", [0.03, 0.3, 3.0, 30.0])
def test_many_undecided_classes_give_an_upper_bound(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = 15
    worst = 0.0
    for seed in range(5):
        absent, weights = random_costs(m, scale, seed)
        bound, off = module.envelope(absent, weights)
        with monkeypatch.context() as patch:
            patch.setattr(module, "MAX_EXACT_CLASSES", m)
            exact, _ = module.envelope(absent, weights)
        assert exact - 1e-9 <= bound
        worst = max(worst, bound - exact)
        assert off.min() >= 0.0 and off.max() <= 1.0
    assert worst <= 4.0  # it says something: m log 2 = 10 would be nothing


@pytest.mark.parametrize(("many", "apart"), [(30.0, 45.0), (15.0, 20.0)])
def test_both_starts_are_needed(many: float, apart: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One large class or three small ones: from all present the three win, from none the one."""
    absent = np.array([50.0, many, many, many])
    weights = np.zeros((4, 4))
    weights[0, 1:] = weights[1:, 0] = apart
    monkeypatch.setattr(module, "SATURATION_ENERGY", np.inf)
    exact = module.envelope(absent, weights)[0]
    monkeypatch.setattr(module, "MAX_EXACT_CLASSES", 0)
    assert module.envelope(absent, weights)[0] == pytest.approx(exact, abs=0.05)


def test_many_classes_bound_log_z(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer states to sum stand for many classes: F bounds log Z, its gradient is its slope."""
    field = make("implicit", pixels=4)
    exact = exact_log_z(field)
    monkeypatch.setattr(module, "MAX_EXACT_CLASSES", 0)
    for seed in range(20):
        q = random_marginals(field.layout, np.random.default_rng(seed))
        assert field.free_energy(q) >= -exact - 1e-9
        g, h = np.zeros(field.layout.size), 1e-5
        field.terms[0].add_gradient(field.layout, q, g)
        move = np.random.default_rng(seed).normal(size=field.layout.size)
        ends = [field.terms[0].energy(field.layout, q + s * h * move) for s in (1, -1)]
        assert g @ move == pytest.approx((ends[0] - ends[1]) / (2 * h), abs=1e-5)
    result = pf.infer(field, "fixed")
    assert result.log_z_bound <= exact + 1e-9


# ---- making and keeping it ----


def test_defaults_are_the_papers() -> None:
    found = counts(4)
    term = pf.Cooccurrence(found, pixels=1000, n_labels=4)
    assert (term.kappa, term.classes.tolist(), term.presence) == (20.0, [1, 2, 3], 1000)
    expected = -0.005 * 1000 * np.log(found.pair_probability()[1, 2])
    assert term.weights[0, 1] == term.weights[1, 0] == pytest.approx(expected)
    assert not term.weights.diagonal().any()


@pytest.mark.parametrize("options", [{}, {"latent": "variables"}])
def test_terms_can_be_pickled(options: dict[str, Any]) -> None:
    term = pf.Cooccurrence(counts(3), pixels=5, **options)
    again = pickle.loads(pickle.dumps(term))
    assert type(again) is type(term)
    np.testing.assert_array_equal(again.weights, term.weights)


def test_small_fields_can_be_written(tmp_path: Path) -> None:
    field = make("variables")
    pf.write_uai(field, tmp_path / "model.uai")
    again = pf.read_uai(tmp_path / "model.uai")
    for x in labellings(field)[::97]:
        assert again.energy(x) == pytest.approx(field.energy(x))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_labels": 3}, "n_labels=3, but the statistics count 4 classes"),
        ({"latent": "maybe"}, "latent='maybe', expected implicit or variables"),
        ({"latent": ["variables"]}, "expected implicit or variables"),
        ({"tables": True}, 'tables=True needs latent="variables"'),
        ({"presence": 7}, 'presence= needs latent="variables"'),
        ({"always": (4,)}, "always=[4], expected classes from 0 to 3"),
        ({"always": (0.5,)}, "always must be integers"),
        ({"kappa": -1.0}, "kappa=-1.0"),
        ({"kappa": np.nan}, "kappa hold NaN"),
        ({"beta": -0.1}, "beta=-0.1"),
        ({"beta": [1.0, 2.0]}, "expected a number"),
        ({"pixels": -1}, "pixels=-1"),
        ({"pixels": 2.5}, "pixels=2.5"),
        ({"first": -1}, "first=-1"),
    ],
)
def test_bad_arguments(options: dict[str, Any], words: str) -> None:
    with pytest.raises(pf.InputError) as caught:
        pf.Cooccurrence(counts(4), **{"pixels": 3, **options})
    assert words in str(caught.value)


def test_statistics_must_be_statistics() -> None:
    with pytest.raises(pf.InputError, match="CooccurrenceStatistics, not dict"):
        pf.Cooccurrence({}, pixels=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cards", "options", "words"),
    [
        ([3] * 2, {}, "pixels are variables 0 to 2, but there are 2"),
        ([3, 3, 2], {}, "variable 2 has 2 labels, but pixels have 3"),
        ([3] * 3 + [2], {"latent": "variables"}, "class presences are variables 3 to 4"),
        ([3] * 3 + [2, 3], {"latent": "variables"}, "variable 4 has 3 labels"),
        ([2] * 6, {"latent": "variables"}, "pixels have 3"),
    ],
)
def test_fields_that_do_not_fit(cards: list[int], options: dict[str, Any], words: str) -> None:
    term = pf.Cooccurrence(counts(3), pixels=3, **options)
    with pytest.raises(pf.InputError) as caught:
        pf.Field(cards, terms=[term])
    assert words in str(caught.value)


def test_presences_may_not_be_pixels() -> None:
    term = pf.Cooccurrence(counts(2), pixels=3, latent="variables", presence=2)
    with pytest.raises(pf.InputError, match=r"variables 2 to 2.* overlap the pixels"):
        pf.Field(4, n_labels=2, terms=[term])


def test_full_parallel_oscillates_on_variables_and_not_on_the_implicit_form() -> None:
    """As in the paper: undamped presences flip for ever; summed out, full steps are certified."""
    rng = np.random.default_rng(0)
    n, n_labels = 60, 5
    pairs = np.full((n_labels, n_labels), 1)
    np.fill_diagonal(pairs, 10)
    counts = pf.CooccurrenceStatistics(20, np.full(n_labels, 10), pairs)
    unary = rng.normal(size=(n, n_labels))
    chain = pf.Potts(np.stack([np.arange(n - 1), np.arange(1, n)], axis=1), 0.5)
    explicit = pf.Field(np.append(np.full(n, n_labels), np.full(n_labels - 1, 2)))
    explicit.add(pf.Unary(unary, np.arange(n))).add(chain)
    explicit.add(pf.Cooccurrence(counts, pixels=n, latent="variables"))
    implicit = pf.Field(n, n_labels=n_labels, terms=[pf.Unary(unary), chain])
    implicit.add(pf.Cooccurrence(counts, pixels=n))
    flipping = pf.infer(explicit, "full-parallel", max_iters=200)
    assert flipping.status is pf.Status.OSCILLATING
    for rule in ("full-parallel", "fixed"):
        result = pf.infer(implicit, rule, max_iters=200)
        assert result.converged
        assert np.diff(result.trace.free_energy).max() < 1e-9
        assert result.free_energy < flipping.free_energy


def test_files_keep_the_former_name_of_the_number_of_labels() -> None:
    term = pf.Cooccurrence(counts(4), pixels=2)
    arrays = {key: np.asarray(part) for key, part in term.to_arrays().items()}
    assert list(arrays)[:2] == ["pixels", "labels"]
    assert pf.Cooccurrence.from_arrays(arrays).n_labels == 4
