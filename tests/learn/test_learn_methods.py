"""Methods of learning: what they recover, that they can be stopped and repeated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from learn_cases import CASES, labellings, make_case

from proxfield.errors import InputError
from proxfield.learn import (
    METHODS,
    Block,
    FitProgress,
    Parameters,
    TiedField,
    fit_chains,
    fit_marginals,
    fit_pseudo,
    marginal_loss,
    prepare,
    pseudo_likelihood,
    zero_parameters,
)
from proxfield.learn.optimize import GibbsChains, stages

GRID = np.array([[r * 3 + c, r * 3 + c + 1] for r in range(3) for c in range(2)]
                + [[r * 3 + c, r * 3 + c + 3] for r in range(2) for c in range(3)])  # fmt: skip
SMALL: dict[str, dict[str, object]] = {"chains": {"max_iters": 20}, "marginals": {"max_iters": 5}}


def every_count(instance: TiedField) -> np.ndarray:
    """Counts of all labellings: the derivatives of the energy in the four parameters."""
    x = labellings(instance.cardinalities)
    differ = x[:, GRID[:, 0]] != x[:, GRID[:, 1]]
    bias, potts = (block.features for block in instance.blocks)
    return np.hstack([x @ bias, differ @ potts])


def probabilities(instance: TiedField, parameters: Parameters) -> np.ndarray:
    """Of all labellings."""
    energy = every_count(instance) @ flat(parameters)
    p = np.exp(energy.min() - energy)
    return np.asarray(p / p.sum())


def information(instance: TiedField, parameters: Parameters) -> np.ndarray:
    """Fisher's: the covariance of counts."""
    counts, p = every_count(instance), probabilities(instance, parameters)
    counts = counts - p @ counts
    return np.asarray(counts.T @ (counts * p[:, None]))


def drawn(parameters: Parameters, rng: np.random.Generator) -> TiedField:
    """A 3 × 3 grid with features, its labels drawn from the model by enumeration."""
    bias, potts = rng.normal(size=(9, 2)), np.exp(rng.normal(scale=0.5, size=(len(GRID), 2)))
    blocks = [
        Block("bias", np.arange(9), features=bias, form=np.array([0.0, 1.0])),
        Block("potts", GRID, features=potts, form="potts"),
    ]
    blank = TiedField(np.full(9, 2), blocks)
    x = labellings(blank.cardinalities)
    return TiedField(
        np.full(9, 2), blocks, x[rng.choice(len(x), p=probabilities(blank, parameters))]
    )


def flat(parameters: Parameters) -> np.ndarray:
    return np.concatenate([value.ravel() for value in parameters.values()])


def hessian(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    h = 1e-4
    return np.array([(function(x + h * e) - function(x - h * e)) / (2 * h) for e in np.eye(len(x))])


def unflat(x: np.ndarray) -> Parameters:
    return {"bias": x[:2], "potts": x[2:]}


@pytest.fixture(scope="module")
def scores() -> dict[str, np.ndarray]:
    """Errors of both consistent methods in standard errors, for 20 models of 4 parameters."""
    out: dict[str, list[np.ndarray]] = {"pseudo": [], "chains": []}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        truth = {"bias": rng.normal(scale=0.7, size=2), "potts": rng.normal(scale=0.4, size=2)}
        instances = [drawn(truth, rng) for _ in range(120)]
        found = fit_pseudo(instances, zero_parameters(instances), l2=0.0, tol=1e-12)
        each = [prepare([i]) for i in instances]
        slopes = np.array([flat(pseudo_likelihood(s, found)[1]) for s in each])
        whole = prepare(instances)
        curve = hessian(lambda x, w=whole: flat(pseudo_likelihood(w, unflat(x))[1]), flat(found))
        inverse = np.linalg.inv(curve)  # errors of estimating equations: H⁻¹ (Σ g gᵀ) H⁻¹
        error = np.sqrt(np.diag(inverse @ (slopes.T @ slopes) @ inverse))
        out["pseudo"].append((flat(found) - flat(truth)) / error)
        found = fit_chains(whole, found, l2=0.0, n_chains=4, max_iters=150, rate=0.02)
        total = sum(information(i, found) for i in instances)
        error = np.sqrt(np.diag(np.linalg.inv(total)))
        out["chains"].append((flat(found) - flat(truth)) / error)
    return {name: np.array(values) for name, values in out.items()}


def test_enumeration_agrees_with_the_field() -> None:
    truth = {"bias": np.array([0.8, -0.5]), "potts": np.array([0.6, 0.3])}
    instance = drawn(truth, np.random.default_rng(0))
    field, x = instance.field(truth), labellings(instance.cardinalities)
    for row in (0, 77, 500):
        energy = every_count(instance)[row] @ flat(truth)
        assert field.energy(x[row]) == pytest.approx(energy)
        np.testing.assert_allclose(flat(instance.counts(x[row])), every_count(instance)[row])


@pytest.mark.parametrize("method", ["pseudo", "chains"])
def test_parameters_are_recovered_within_their_standard_errors(
    scores: dict[str, np.ndarray], method: str
) -> None:
    z = scores[method]
    assert z.shape == (20, 4)
    assert np.abs(z).max() < 4.0
    assert 0.7 < np.sqrt((z**2).mean()) < 1.3  # 80 numbers of variance 1
    assert (np.abs(z) < 2).mean() > 0.88


def test_errors_are_noticed(scores: dict[str, np.ndarray]) -> None:
    """The test above would see parameters that are wrong by one and a half standard errors."""
    assert np.sqrt(((scores["pseudo"] + 1.5) ** 2).mean()) > 1.3


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("method", METHODS)
def test_fits_are_reproducible_and_leave_the_start_alone(method: str, kind: str) -> None:
    instances, parameters = make_case(kind)
    before = {name: value.copy() for name, value in parameters.items()}
    fits = [METHODS[method](instances, parameters, **SMALL.get(method, {})) for _ in range(2)]
    for name, value in before.items():
        assert (parameters[name] == value).all()
        assert (fits[0][name] == fits[1][name]).all()
        assert fits[0][name].shape == value.shape
        assert not (fits[0][name] == value).all()


def test_pseudo_likelihood_ends_at_the_minimum_from_anywhere() -> None:
    instances, parameters = make_case("labels", count=6)
    s = prepare(instances)
    found = fit_pseudo(s, parameters, l2=0.3, tol=1e-14, max_iters=2000)
    again = fit_pseudo(s, zero_parameters(instances), l2=0.3, tol=1e-14, max_iters=2000)
    _, gradient = pseudo_likelihood(s, found)
    assert np.abs(flat(gradient) + 0.3 * flat(found)).max() < 1e-3
    np.testing.assert_allclose(flat(found), flat(again), atol=2e-3)


@pytest.mark.parametrize("loss", ["log", "dice", "iou"])
def test_marginals_lower_the_loss(loss: str) -> None:
    instances, _ = make_case("mixed-factors", count=6)
    s, start = prepare(instances), zero_parameters(instances)
    found = fit_marginals(s, start, loss=loss, l2=0.01)
    assert marginal_loss(s, found, loss)[0] < 0.7 * marginal_loss(s, start, loss)[0]


@pytest.mark.parametrize("method", METHODS)
def test_bad_settings(method: str) -> None:
    instances, parameters = make_case("binary")
    for settings, message in (
        ({"l2": -1.0}, "l2=-1.0, expected a number, 0 or more"),
        ({"l2": np.nan}, "l2=nan"),
        ({"max_iters": 1.5}, "max_iters=1.5, expected a whole number"),
        ({"max_iters": -1}, "max_iters=-1"),
    ):
        with pytest.raises(InputError, match=message):
            METHODS[method](instances, parameters, **settings)


def test_fixed_parameters_stay() -> None:
    instances, parameters = make_case("labels")
    for method in METHODS:
        found = METHODS[method](instances, parameters, fixed=["potts"], **SMALL.get(method, {}))
        assert (found["potts"] == parameters["potts"]).all()
        assert not (found["unary3"] == parameters["unary3"]).all()


@pytest.mark.parametrize("method", METHODS)
def test_progress_is_told_and_can_stop(method: str) -> None:
    instances, parameters = make_case("binary")
    told: list[FitProgress] = []

    def callback(progress: FitProgress) -> bool:
        told.append(progress)
        return progress.iteration == 3

    METHODS[method](instances, parameters, callback=callback)
    assert [t.iteration for t in told] == [1, 2, 3]
    assert {t.method for t in told} == {method}
    assert all(t.gradient >= 0 and t.seconds >= 0 for t in told)
    if method != "chains":
        assert told[2].objective < told[0].objective


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupt_returns_the_best_so_far(method: str) -> None:
    instances, parameters = make_case("binary")
    limit = {"max_iters": 1000}

    def interrupt(progress: FitProgress) -> None:
        if progress.iteration == 4:
            raise KeyboardInterrupt

    found = METHODS[method](instances, parameters, callback=interrupt, **limit)
    s = prepare(instances)
    if method == "pseudo":
        assert pseudo_likelihood(s, found)[0] < pseudo_likelihood(s, parameters)[0]
    if method == "marginals":
        assert marginal_loss(s, found)[0] < marginal_loss(s, parameters)[0]
    assert not (flat(found) == flat(parameters)).all()


def test_class_weights_move_the_decision() -> None:
    rng = np.random.default_rng(0)
    y = (rng.random(400) < 0.1).astype(int)
    x = y[:, None] + rng.normal(size=(400, 1))
    block = Block("u", np.arange(400), features=np.hstack([x, np.ones((400, 1))]))
    instances = [TiedField(np.full(400, 2), [block], y)]
    for method in (fit_pseudo, fit_marginals):
        found = []
        for weight in (None, "balanced", [1.0, 9.0]):
            p = method(instances, zero_parameters(instances), l2=0.01, class_weight=weight)
            found.append((block.features @ p["u"]).argmin(axis=1).mean())
        assert found[0] < 0.1 < 0.2 < found[1]
        assert found[1] == pytest.approx(found[2], abs=0.1)


def test_unknown_labels_are_summed_out_by_chains() -> None:
    """With half of the labels unknown, chains still recover the weights; ignoring them wouldn't."""
    rng = np.random.default_rng(3)
    truth = {"bias": np.array([0.8, -0.5]), "potts": np.array([0.6, 0.3])}
    instances = [drawn(truth, rng) for _ in range(300)]
    hidden = []
    for instance in instances:
        labels = np.where(rng.random(9) < 0.5, -1, instance.labels)
        hidden.append(TiedField(instance.cardinalities, instance.blocks, labels))
    found = fit_chains(hidden, zero_parameters(hidden), l2=0.0, max_iters=300, n_chains=2)
    assert np.abs(flat(found) - flat(truth)).max() < 0.25


def test_an_interrupt_while_interactions_are_weakened_ends_the_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    instances, parameters = make_case("binary")
    told: list[FitProgress] = []
    monkeypatch.setattr("proxfield.learn.methods.marginal_loss", interrupt)
    with stages() as interrupted:
        found = fit_marginals(instances, parameters, callback=told.append)
        assert interrupted()  # stages around it know
    assert not told and (flat(found) == flat(parameters)).all()


def test_chains_that_hold_labels_draw_other_numbers() -> None:
    """For every number of variables: also for multiples of four."""
    block = Block("u", np.arange(8), index=np.zeros(8, int))
    s = prepare([TiedField(np.full(8, 2), [block], [-1] * 8)])
    free, held = GibbsChains(s, 1, 0), GibbsChains(s, 1, 0, hold=True)
    held.x[:] = free.x
    for _ in range(20):
        free.sweep(np.zeros(2))
        held.sweep(np.zeros(2))
        if (free.x != held.x).any():
            return
    raise AssertionError("the same labels in all sweeps")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": -1}, "seed=-1, expected a whole number, 0 or more"),
        ({"rate": np.nan}, "rate=nan, expected a number above 0"),
        ({"rate": "fast"}, "rate='fast', expected a number above 0"),
    ],
)
def test_bad_settings_of_chains(settings: dict[str, object], message: str) -> None:
    instances, parameters = make_case("binary")
    with pytest.raises(InputError, match=message):
        fit_chains(instances, parameters, **settings)  # type: ignore[arg-type]
