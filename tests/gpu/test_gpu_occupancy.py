"""Occupancy maps on a GPU: against the term in numpy, alone and as batches of frames."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_gpu_many import assert_same, batches
from triton_setup import INTERPRETED, direct, indirect, run_interpreted, torch

import proxfield as pf
from proxfield.core.engines.terms import implementation
from proxfield.core.engines.triton.device_pack import upload
from proxfield.core.engines.triton.frames import FramesProgram
from proxfield.core.engines.triton.terms.base import HostTerm, on_device
from proxfield.core.engines.triton.update import binary, board
from proxfield.core.terms.base import Layout
from proxfield.people.silhouettes import Boxes, Runs, Silhouettes
from proxfield.people.triton import occupancy_plan
from proxfield.people.triton.occupancy import OccupancyFrames, OccupancyOnDevice

__all__ = ["batches"]  # a fixture
DEVICE = "cpu" if INTERPRETED else "cuda"
MODELS = ("exact", "ratio")
N = 30


@indirect
def test_interpreted() -> None:
    run_interpreted(__file__)


def boxes(height: int, width: int, seed: int, n: int = N) -> Boxes:
    """Rectangles of all sizes; many share a corner, some touch the borders, some aren't seen."""
    random = np.random.default_rng(seed)
    left, top = random.integers(0, width, n), random.integers(0, height, n)
    right = np.minimum(left + random.integers(1, width + 1, n), width)
    bottom = np.minimum(top + random.integers(1, height + 1, n), height)
    out = np.stack([left, top, right, bottom], axis=1)
    out[:12, :2] = 0, 1
    out[:12, 3] = np.maximum(out[:12, 3], 2)
    out[3] = 0, 0, width, height
    out[[5, n - 2]] = 0
    return Boxes(height, width, out)


def runs(height: int, width: int, seed: int, n: int = N) -> Runs:
    """Ragged shapes, one empty."""
    random = np.random.default_rng(seed)
    masks = random.random((n, height, width)) < 0.4
    masks[2], masks[4], masks[6] = False, True, False
    return Runs.from_masks(masks)


SCENES: dict[str, list[Silhouettes]] = {
    "boxes": [boxes(7, 19, 0), boxes(11, 5, 1), boxes(2, 1, 2)],
    "runs": [runs(4, 6, 3)],
    "mixed": [runs(5, 17, 4), boxes(6, 8, 5), runs(3, 3, 6)],
}


def masks_of(scene: list[Silhouettes], seed: int, as_bytes: bool = False) -> list[Any]:
    random = np.random.default_rng(seed)
    shapes = [(s.height, s.width) for s in scene]
    if as_bytes:
        return [random.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
    return [np.round(random.random(shape), 2) for shape in shapes]


def term_of(scene: list[Silhouettes], model: str, seed: int = 0, **options: Any) -> pf.Occupancy:
    given: dict[str, Any] = {"miss": 0.2, "strength": 3.0, "variance": 0.3, "floor": 0.02}
    return pf.Occupancy(scene, masks_of(scene, seed), model=model, **{**given, **options})


def marginals(seed: int, n: int = N, saturated: bool = True) -> Any:
    """Of two labels; some p_i are so small that pixels are summed one by one, two are 0."""
    random = np.random.default_rng(seed)
    p = random.random(n)
    if saturated:
        p[[1, 3, 9, n - 1]] = 1e-7, 1e-12, 0.0, 0.0
    return np.stack([p, 1 - p], axis=1).ravel()


def expected(term: Any, q: Any) -> tuple[Any, float]:
    layout = Layout(np.full(len(q) // 2, 2))
    out = np.ones(len(q))
    term.add_gradient(layout, q.astype(np.float64), out)
    return out, term.energy(layout, q.astype(np.float64))


def check(term: Any, q: Any, dtype: str, rounding: float) -> Any:
    """Both add the same to what is there, and agree about the energy."""
    q = q.astype(dtype)
    layout = Layout(np.full(len(q) // 2, 2))
    made = on_device(term, layout, dtype, DEVICE)
    there = torch.from_numpy(q).to(DEVICE)
    out = torch.ones(len(q), dtype=there.dtype, device=DEVICE)
    energy = made.add_gradient(there, out)
    assert energy.shape == () and energy.dtype == torch.float64
    g, e = expected(term, q)
    np.testing.assert_allclose(out.cpu(), g, rtol=rounding, atol=rounding * abs(g).max())
    assert float(energy) == pytest.approx(e, rel=rounding, abs=rounding)
    if not INTERPRETED:
        again = torch.ones_like(out)
        assert bool(made.add_gradient(there, again) == energy) and bool((again == out).all())
    return made


# ---- one frame ----


@direct
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("scene", SCENES)
def test_as_in_numpy(scene: str, model: str) -> None:
    term = term_of(SCENES[scene], model)
    made = check(term, marginals(7), "float64", 1e-11)
    assert isinstance(made, OccupancyOnDevice) and made.capturable
    check(term, marginals(8, saturated=False), "float32", 1e-5)


@direct
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["boxes", "runs"])
def test_small_p(kind: str, model: str) -> None:
    """Integral images hold 1 − 1e-30 beside 1e-30: pixels have to be summed one by one."""
    seen: Silhouettes = Boxes(5, 9, [[0, 0, 2, 2], [4, 1, 9, 5], [3, 3, 6, 5]])
    if kind == "runs":
        masks = np.zeros((3, 5, 9), dtype=bool)
        for k in range(3):
            masks[k].ravel()[seen.pixels(k)] = True
        seen = Runs.from_masks(masks)
    p = np.array([0.9, 0.0, 1e-9])
    check(term_of([seen], model), np.stack([p, 1 - p], axis=1).ravel(), "float64", 1e-11)


@direct
@pytest.mark.parametrize("model", MODELS)
def test_groups_of_cameras_and_pieces_of_rows(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What large images need: cameras one after another, rows in pieces, bands of few rows."""
    monkeypatch.setattr(occupancy_plan, "SCRATCH_BYTES", 100)
    monkeypatch.setattr(occupancy_plan, "MAX_WIDTH", 16)
    monkeypatch.setattr(occupancy_plan, "BAND", 4)
    scene = [boxes(7, 19, 0), runs(5, 17, 4), boxes(11, 5, 1)]  # others than those of SCENES
    made = check(term_of(scene, model), marginals(7), "float64", 1e-11)
    assert len(made.plan.groups) == 3


@direct
@pytest.mark.parametrize("model", MODELS)
def test_corners_of_many(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More corners at one pixel than lanes share at once."""
    monkeypatch.setattr(occupancy_plan, "CROWDED", 1)
    n = 100
    scene: list[Silhouettes] = [boxes(6, 8, 5, n), Boxes(3, 3, [[1, 1, 2, 2]] * n)]
    check(term_of(scene, model), marginals(3, n), "float64", 1e-11)


@direct
@pytest.mark.parametrize("model", MODELS)
def test_nothing_to_see(model: str) -> None:
    hidden: list[Silhouettes] = [Boxes(2, 3, np.zeros((4, 4), dtype=int))]
    check(term_of(hidden, model), marginals(0, 4, saturated=False), "float64", 1e-12)
    blind = pf.Occupancy(hidden, [None], model=model)
    check(blind, marginals(0, 4, saturated=False), "float64", 1e-12)


@direct
def test_masks_of_bytes_and_of_booleans() -> None:
    scene = SCENES["mixed"]
    given = masks_of(scene, 0, as_bytes=True)
    made = check(pf.Occupancy(scene, given), marginals(7), "float64", 1e-11)
    assert made.staging.dtype == torch.uint8
    made = check(pf.Occupancy(scene, [m > 99 for m in given]), marginals(7), "float64", 1e-11)
    assert made.staging.dtype == torch.uint8
    check(pf.Occupancy(scene, [given[0], given[1] / 255, given[2]]), marginals(7), "float64", 1e-11)


@direct
def test_beside_other_variables() -> None:
    scene = SCENES["mixed"]
    term = term_of(scene, "exact", first=2)
    layout = Layout(np.array([3, 4] + [2] * N + [5]))
    q = np.concatenate([np.full(3, 1 / 3), np.full(4, 0.25), marginals(7), np.full(5, 0.2)])
    out = np.ones(layout.size)
    term.add_gradient(layout, q, out)
    made = on_device(term, layout, "float64", DEVICE)
    found = torch.ones(layout.size, dtype=torch.float64, device=DEVICE)
    energy = made.add_gradient(torch.from_numpy(q).to(DEVICE), found)
    np.testing.assert_allclose(found.cpu(), out, rtol=1e-11, atol=1e-11 * abs(out).max())
    assert float(energy) == pytest.approx(term.energy(layout, q), rel=1e-11)


@direct
def test_silhouettes_of_other_kinds_stay_on_the_host() -> None:
    class Shifted(Boxes):
        """Boxes with an origin of their own."""

    scene: list[Silhouettes] = [Shifted(4, 5, [[0, 0, 2, 2], [1, 1, 5, 4]])]
    term = pf.Occupancy(scene, masks_of(scene, 0))
    assert implementation(term, "cuda") is None
    assert isinstance(on_device(term, Layout(np.array([2, 2])), "float64", DEVICE), HostTerm)


@direct
def test_a_plan_is_made_once_per_scene() -> None:
    scene = tuple(SCENES["mixed"])
    plan = occupancy_plan.plan_for(scene, DEVICE)
    assert occupancy_plan.plan_for(scene, DEVICE) is plan
    assert occupancy_plan.plan_for(scene[:2], DEVICE) is not plan
    other = (scene[0], scene[1], runs(3, 3, 6))
    assert occupancy_plan.plan_for(other, DEVICE) is not plan


# ---- several frames ----


@direct
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("together", [1, 2, 8])
def test_frames(model: str, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each frame as alone, however many are worked on together; then with other masks."""
    scene = SCENES["mixed"]
    plan = occupancy_plan.plan_for(tuple(scene), DEVICE)
    monkeypatch.setattr(occupancy_plan, "SCRATCH_BYTES", together * 24 * plan.size)
    layout = Layout(np.full(N, 2))
    terms = [term_of(scene, model, seed) for seed in range(3)]
    frames = OccupancyFrames(terms, layout, "float64", DEVICE)
    assert frames.at_once == min(together, 3)
    q = [marginals(seed, saturated=seed != 1) for seed in range(3)]
    there = torch.from_numpy(np.concatenate(q)).to(DEVICE)
    for some in (terms, terms[::-1]):
        frames.set_terms([SimpleNamespace(compact=term.masks) for term in some])
        out = torch.ones_like(there)
        energies = frames.add_gradient(there, out)
        assert energies.shape == (3,) and energies.dtype == torch.float64
        for k, term in enumerate(some):
            g, e = expected(term, q[k])
            mine = out.cpu().numpy().reshape(3, -1)[k]
            np.testing.assert_allclose(mine, g, rtol=1e-11, atol=1e-11 * abs(g).max())
            assert float(energies[k]) == pytest.approx(e, rel=1e-11)


@direct
def test_what_frames_have_in_common() -> None:
    key = OccupancyFrames.frame_key
    scene = SCENES["mixed"]
    first = key(term_of(scene, "exact"))
    assert key(term_of(scene, "exact", 1)) == first
    assert key(term_of(scene, "ratio")) != first
    assert key(term_of(scene, "exact", false_alarm=0.01)) != first
    assert key(term_of([scene[0], scene[1], runs(3, 3, 6)], "exact")) != first


@direct
def test_marginals_of_pairs_of_each_field() -> None:
    """Each field has its own present buffer; the others hold other numbers."""
    lowereds = [field.lower() for field in frames_of(TINY, "exact", 2)]
    program = FramesProgram(lowereds, "float64", DEVICE)
    state = program.start([marginals(k, 14, saturated=False) for k in range(2)])
    slot = state.slot
    slot.buffers[1] *= 3.0
    slot.board[:, board.TICK] = torch.tensor([4, 5], dtype=torch.int32)
    expected = program.natural.marginals(program._present(slot))
    slot.shift.fill_(7.0)
    binary.read_pairs[(2, 2)](
        slot.buffers[0, program.front :], slot.stride, slot.status, slot.q, slot.shift, 28, BLOCK=16
    )
    np.testing.assert_allclose(slot.q.cpu(), expected.cpu(), rtol=1e-14)
    assert not slot.shift[:56].any()


@direct
def test_arrays_one_after_another() -> None:
    one, other = np.array([1.0, 2.0]), np.array([3.0, 4.0], dtype=np.float32)
    assert upload([one, one[:]], DEVICE).tolist() == [1.0, 2.0, 1.0, 2.0]
    assert upload([one, other], DEVICE).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert upload([one, one[::-1]], DEVICE).tolist() == [1.0, 2.0, 2.0, 1.0]


# ---- inference ----

RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "fixed": ("fixed", {"step": 0.2}),
    "full-parallel": ("full-parallel", {}),
    "adaptive": ("adaptive", {"step": 0.5}),
    "backtracking": ("backtracking", {}),
    "adhoc": ("adhoc", {"eta": 0.4}),
    "momentum": ("momentum", {"gamma": 0.6}),
    "adam": ("adam", {"step": 0.3, "epsilon": 0.1}),
}


TINY: list[Silhouettes] = [boxes(3, 4, 5, 14), runs(2, 3, 6, 14)]
"""The interpreter takes a millisecond or so for each row of each image."""


def field_of(term: Any, prior: float = 0.2) -> pf.Field:
    energies = np.zeros((term.n_locations, 2))
    energies[:, 1] = np.log(1 / prior - 1)
    return pf.Field(term.n_locations, 2, [pf.Unary(energies), term])


def frames_of(scene: list[Silhouettes], model: str, count: int) -> list[pf.Field]:
    return [field_of(term_of(scene, model, seed), 0.1 + 0.1 * seed) for seed in range(count)]


SOME = ("fixed", "momentum", "backtracking") if INTERPRETED else tuple(RULES)
"""The interpreter takes seconds for each."""


@direct
@pytest.mark.parametrize("name", SOME)
def test_frames_end_as_alone(name: str, batches: list[int]) -> None:
    rule, params = RULES[name]
    model = "ratio" if name in ("adhoc", "momentum") else "exact"
    fields = frames_of(TINY, model, 2)
    options: dict[str, Any] = {"max_iters": 3, "tol": 0, "dtype": "float64", "device": "cuda"}
    results = pf.infer_many(fields, rule, **options, **params)
    assert batches == [2]
    for field, result in zip(fields, results, strict=True):
        assert_same(result, pf.infer(field, rule, **options, **params))
        assert result.free_energy == pytest.approx(field.free_energy(result.q), rel=1e-10)


@direct
def test_as_on_the_host(batches: list[int]) -> None:
    fields = frames_of(TINY, "exact", 2)
    options: dict[str, Any] = {"max_iters": 4, "step": 0.2, "tol": 0}
    results = pf.infer_many(fields, "fixed", device="cuda", **options)
    assert batches == [2]
    for field, result in zip(fields, results, strict=True):
        host = pf.infer(field, "fixed", kernels="reference", **options)
        np.testing.assert_allclose(result.q, host.q, atol=1e-5)
        assert result.free_energy == pytest.approx(host.free_energy, rel=1e-5)


@direct
def test_each_frame_stops_by_itself(batches: list[int]) -> None:
    """One starts where it ends; the other goes on."""
    scene: list[Silhouettes] = [boxes(2, 2, 5, 14)]
    fields = frames_of(scene, "exact", 2)
    start = pf.infer(fields[1], "fixed", step=0.5, kernels="reference", max_iters=30, tol=0)
    options: dict[str, Any] = {"step": 0.5, "device": "cuda", "dtype": "float64", "max_iters": 3}
    results = pf.infer_many(fields, "fixed", init=["uniform", start], tol=0.05, **options)
    assert batches == [2]
    assert [r.iterations for r in results] == [3, 1]
    assert results[1].converged and not results[0].converged


@direct
def test_only_frames_of_one_scene_are_together(batches: list[int]) -> None:
    one, other = TINY, [runs(2, 3, 7, 14)]
    hidden = pf.Occupancy(one, [masks_of(one, 3)[0], None], miss=0.2, strength=3.0)
    terms = [
        term_of(one, "exact"), term_of(other, "exact"), term_of(one, "ratio"), hidden,
        term_of(one, "exact", 1),
    ]  # fmt: skip
    results = pf.infer_many([field_of(t) for t in terms], "adhoc", device="cuda", max_iters=2)
    assert sorted(batches) == [1, 1, 1, 2]
    for term, result in zip(terms, results, strict=True):
        assert result.field.terms[-1] is term


@direct
@pytest.mark.parametrize("model", MODELS)
def test_the_next_frames_use_the_same_program(
    model: str, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from proxfield.core.engines.triton import frames

    made: list[int] = []
    make = frames.FramesProgram.__init__

    def counted(self: Any, lowereds: Any, *args: Any) -> None:
        made.append(len(lowereds))
        make(self, lowereds, *args)

    monkeypatch.setattr(frames.FramesProgram, "__init__", counted)
    scene: list[Silhouettes] = [boxes(3, 4, 5, 14), runs(2, 3, 6, 14)]
    fields = frames_of(scene, model, 5)
    dtype, atol = ("float64", 1e-8) if model == "exact" else ("float32", 2e-5)
    options: dict[str, Any] = {"max_iters": 2, "dtype": dtype, "device": "cuda"}
    for some in (fields[:2], fields[2:4], fields[4:]):
        for field, result in zip(some, pf.infer_many(some, "adhoc", **options), strict=True):
            assert_same(result, pf.infer(field, "adhoc", **options), atol)
            assert result.free_energy == pytest.approx(field.free_energy(result.q), rel=1e-9)
    assert made == [2, 1]


@direct
def test_a_scene_can_go(batches: list[int]) -> None:
    """Programs kept for the next frames don't keep the scene."""
    gone = boxes(3, 4, 5)
    fields = frames_of([gone], "exact", 2)
    pf.infer_many(fields, "adhoc", max_iters=1, device="cuda")
    assert gone in occupancy_plan._PLANS
    there = weakref.ref(gone)
    del fields, gone
    gc.collect()
    assert there() is None
