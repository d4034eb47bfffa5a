"""The gradients of the layer and of `infer`: right for any number of updates."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import proxfield as pf  # noqa: E402
import proxfield.torch as pt  # noqa: E402
from proxfield.errors import GradientWarning  # noqa: E402
from proxfield.torch.dense import dense_energies  # noqa: E402

UPDATES = [1, 3, 10, 50]
WEIGHTS = {"attractive": (1.5, 2.0), "repulsive": (-4.0, -6.0), "mixed": (-5.0, 2.0)}

any_updates = pytest.mark.parametrize("updates", UPDATES)


def cosine(a: Any, b: Any) -> float:
    """Between two lists of tensors."""
    x, y = (torch.cat([t.ravel() for t in tensors]) for tensors in (a, b))
    return float(x @ y / (x.norm() * y.norm()))


# ---- written out ----


def kernel(features: Any, normalization: str, self_message: bool) -> Any:
    """A as a matrix.  # (B, n, d) -> (B, n, n)"""
    gap = features[:, :, None] - features[:, None]
    k = torch.exp(-0.5 * gap.square().sum(-1))
    mass = k.sum(-1)
    if normalization == "symmetric":
        k = k / (mass[:, :, None] * mass[:, None]).sqrt()
    elif normalization == "before":
        k = 0.5 * (k / mass[:, :, None] + k / mass[:, None])
    return k if self_message else k - torch.diag_embed(k.diagonal(dim1=1, dim2=2))


def certified(features: list[Any], tables: Any, self_message: bool) -> Any:
    """The certified step with symmetric normalization: A's eigenvalues are within 0 and 1, less
    its diagonal if that is left out."""
    total = 0.0
    for f, table in zip(features, tables, strict=True):
        ends = torch.linalg.eigvalsh(table - table.mean(0) - table.mean(1)[:, None] + table.mean())
        own = kernel(f, "symmetric", True).diagonal(dim1=1, dim2=2)
        low, high = (0.0, 1.0) if self_message else (-own.amax(1), 1 - own.amin(1))
        products = [torch.as_tensor(k * m) for k in (low, high) for m in (ends[0], ends[-1])]
        total = total + torch.stack(torch.broadcast_tensors(*products)).amax(0).clamp(min=0)
    return (1 / (1 + (total / 4 - 0.5).clamp(min=0))).reshape(-1, 1, 1)


def plain_updates(
    unary: Any, features: list[Any], tables: Any, updates: int, step: float | None, **kind: Any
) -> Any:
    """θ after the updates, in operations that autograd records."""
    matrices = [kernel(f, **kind) for f in features]
    size = certified(features, tables, kind["self_message"]) if step is None else step
    theta = unary
    for _ in range(updates):
        q = torch.softmax(-theta, dim=-1)
        target = unary + sum(a @ q @ m for a, m in zip(matrices, tables, strict=True))
        theta = theta - size * (theta - target)
    return theta


def draw(device: str, n_labels: int = 3, strength: float = 2.0) -> list[Any]:
    """Unaries, features of two terms (one shared by all images), tables."""
    make = {"dtype": torch.float64, "device": device}
    tables = strength * torch.randn(2, n_labels, n_labels, **make)
    inputs = [
        torch.randn(2, 7, n_labels, **make), torch.randn(1, 7, 2, **make),
        torch.randn(2, 7, 3, **make), 0.5 * (tables + tables.mT),
    ]  # fmt: skip
    return [x.requires_grad_() for x in inputs]


def gradients(theta: Any, inputs: list[Any]) -> Any:
    """Of a fixed function of the marginals."""
    q = torch.softmax(-theta, dim=-1)
    weigh = torch.linspace(-1, 1, q.numel(), dtype=q.dtype, device=q.device).cos()
    return torch.autograd.grad((q.square() * weigh.reshape(q.shape)).sum(), inputs)


# ---- the layer ----


@any_updates
@pytest.mark.parametrize("normalization", ["symmetric", "before", "none"])
@pytest.mark.parametrize("self_message", [True, False])
@pytest.mark.parametrize("step", [None, 0.6])
def test_equals_autograd_through_plain_updates(
    device: str, updates: int, normalization: str, self_message: bool, step: float | None
) -> None:
    if step is None and normalization != "symmetric":
        pytest.skip("the certified step is written out for the symmetric normalization")
    u, f, g, m = inputs = draw(device)
    kind = {"normalization": normalization, "self_message": self_message}
    expected = gradients(plain_updates(u, [f, g], m, updates, step, **kind), inputs)
    for keep_every in (1, 4):
        theta, _ = dense_energies(
            u, [f, g], m, max_iters=updates, tol=0, step=step, keep_every=keep_every, **kind
        )
        for mine, recorded in zip(gradients(theta, inputs), expected, strict=True):
            assert torch.allclose(mine, recorded, rtol=1e-7, atol=1e-10)


def test_the_certified_step_is_damped_and_differentiated(device: str) -> None:
    u, f, g, m = draw(device, strength=6.0)
    assert float(certified([f, g], m, True).detach().max()) < 0.8
    theta, _ = dense_energies(u, [f, g], m, max_iters=3, tol=0)
    (through_step,) = gradients(theta, [m])
    step = certified([f, g], m, True).detach()
    held = plain_updates(u, [f, g], m, 3, step, normalization="symmetric", self_message=True)
    assert not torch.allclose(through_step, gradients(held, [m])[0], rtol=1e-2)


@any_updates
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("n_labels", [2, 3, 5])
def test_gradcheck_of_the_layer(device: str, updates: int, weights: str, n_labels: int) -> None:
    make = {"dtype": torch.float64, "device": device}
    image, logits = torch.rand(2, 3, 2, 3, **make), torch.randn(2, n_labels, 2, 3, **make)
    spatial, bilateral = WEIGHTS[weights]
    layer = pt.DenseCRF(
        n_labels, compatibility="diagonal", spatial_weight=spatial, bilateral_weight=bilateral,
        bilateral_color=0.5, bilateral_sigma=2.0, spatial_sigma=(1.0, 2.0), max_iters=updates,
        tol=0,
    ).double().to(device)  # fmt: skip
    start = -1 - torch.rand(n_labels, **make)  # unequal: eigenvalues that cross have no derivative
    names = [name for name, _ in layer.named_parameters()]
    values = {**dict(layer.named_parameters()), "compatibility": start}

    def run(image: Any, logits: Any, *values: Any) -> Any:
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(layer, given, (image, logits))

    inputs = [image, logits, *(values[name].detach().clone() for name in names)]
    inputs = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True, atol=1e-6)


def test_the_default_is_right_before_convergence(device: str) -> None:
    make = {"dtype": torch.float64, "device": device}
    image, logits = torch.rand(1, 3, 8, 8, **make), 0.5 * torch.randn(1, 3, 8, 8, **make)
    logits.requires_grad_()
    layer = pt.DenseCRF(
        3, bilateral_color=0.3, bilateral_sigma=4.0, spatial_weight=1.0, bilateral_weight=1.6,
        spatial_sigma=3.0, preset="krahenbuehl", output="marginals",
    ).double()  # fmt: skip
    layer = layer.to(device)
    assert layer.max_iters == 10
    inputs = [logits, layer.log_weights, layer.log_spatial_sigma, layer.log_bilateral_color]
    found = torch.autograd.grad(layer(image, logits)[:, 0].square().sum(), inputs)
    unary = -logits.flatten(2).transpose(1, 2)
    features = layer.features(image, None, (8, 8), unary)
    kind = {"normalization": "symmetric", "self_message": True}
    theta = plain_updates(unary, features, layer.tables(), 10, 1.0, **kind)
    q = torch.softmax(-theta, dim=-1)
    expected = torch.autograd.grad(q[..., 0].square().sum(), inputs)
    assert cosine(found, expected) > 1 - 1e-9


def test_early_stopping_gives_the_gradient_of_the_updates_made(device: str) -> None:
    u, f, g, m = inputs = draw(device, strength=0.7)
    theta, facts = dense_energies(u, [f, g], m, max_iters=100, tol=0.02)
    made = int(facts[0])
    assert 2 < made < 20
    kind = {"normalization": "symmetric", "self_message": True}
    found = gradients(theta, inputs)
    for updates, same in ((made, True), (made - 1, False)):
        expected = gradients(plain_updates(u, [f, g], m, updates, None, **kind), inputs)
        alike = [torch.allclose(a, b, rtol=1e-8) for a, b in zip(found, expected, strict=True)]
        assert all(alike) if same else not any(alike)


def test_no_updates(device: str) -> None:
    u, f, g, m = inputs = draw(device)
    theta, _ = dense_energies(u, [f, g], m, max_iters=0)
    grads = torch.autograd.grad(theta.square().sum(), inputs)
    assert torch.equal(grads[0], 2 * u)
    assert all((g == 0).all() for g in grads[1:])


def test_gradient_under_autocast(device: str) -> None:
    image, logits = torch.rand(1, 3, 6, 7, device=device), torch.randn(1, 3, 6, 7, device=device)
    layer = pt.DenseCRF(3, bilateral_color=0.3, spatial_weight=-9.37).to(device)
    found, outputs = [], []
    for enabled in (False, True):
        x = logits.clone().requires_grad_()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=enabled):
            out = layer(image, x)
        grads = torch.autograd.grad(out.float()[:, 0].sum(), [x, *layer.parameters()])
        found.append(grads)
        outputs.append(out)
    assert torch.allclose(*outputs, atol=1e-6)
    assert cosine(*found) > 1 - 1e-5


# ---- what is kept ----


def saved_bytes(function: Any) -> int:
    """Bytes that autograd keeps, every tensor once."""
    seen: dict[tuple[int, int], int] = {}

    def pack(x: Any) -> Any:
        seen[x.data_ptr(), x.numel()] = x.numel() * x.element_size()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        kept = function()  # alive, so that no memory is used twice
    del kept
    return sum(seen.values())


@pytest.mark.parametrize("keep_every", [1, 3])
def test_memory_is_that_of_the_inputs_and_one_theta_per_update(keep_every: int) -> None:
    u, f, g, m = inputs = draw("cpu")
    size = u.numel() * u.element_size()
    held = sum(x.numel() * x.element_size() for x in inputs)
    for updates in (1, 10, 40):
        found = saved_bytes(
            lambda n=updates: dense_energies(
                u, [f, g], m, max_iters=n, tol=0, step=0.5, keep_every=keep_every
            )
        )
        # also the step and two numbers
        assert found == held + size * (1 + (updates - 1) // keep_every) + 8 + 16


def test_memory_of_the_layer() -> None:
    image, logits = torch.rand(2, 3, 6, 6), torch.randn(2, 3, 6, 6)

    def saved(gradient: str, iterations: int) -> int:
        layer = pt.DenseCRF(3, gradient=gradient, max_iters=iterations, tol=0)
        return saved_bytes(lambda: layer(image, logits))

    size = logits.numel() * logits.element_size()
    assert saved("exact", 40) - saved("exact", 4) == 36 * size
    assert saved("implicit", 40) == saved("implicit", 4)
    assert saved("unrolled", 40) > 5 * saved("unrolled", 4)


def test_nothing_is_kept_where_nothing_is_learned(monkeypatch: Any) -> None:
    from proxfield.torch import dense

    kept = []
    run = dense.fixed_point
    monkeypatch.setattr(
        dense, "fixed_point", lambda *a: kept.append((found := run(*a)).kept) or found
    )
    inputs = draw("cpu")
    dense_energies(inputs[0], [inputs[1]], inputs[3][:1], tol=0)
    with torch.no_grad():
        dense_energies(inputs[0], [inputs[1]], inputs[3][:1], tol=0)
    assert [len(x) for x in kept] == [9, 0]


# ---- implicit ----


def test_implicit_falls_back_with_one_warning(device: str) -> None:
    u, f, g, m = inputs = draw(device)
    found = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for kind in ("exact", "implicit", "implicit"):
            theta, _ = dense_energies(u, [f, g], m, max_iters=4, tol=0, gradient=kind)
            found[kind] = gradients(theta, inputs)
    assert [w.category for w in caught] == [GradientWarning]
    text = str(caught[0].message)
    assert "not converged" in text and "\n" not in text and len(text) < 200
    for mine, exact in zip(found["implicit"], found["exact"], strict=True):
        assert torch.equal(mine, exact)


def test_implicit_falls_back_at_a_saddle(device: str) -> None:
    # the uniform state is a fixed point of attraction alone, but no minimum of F
    make = {"dtype": torch.float64, "device": device}
    u = torch.zeros(1, 6, 2, **make).requires_grad_()
    points = torch.zeros(1, 6, 1, **make)
    table = -8.0 * torch.eye(2, **make)[None]
    weigh = torch.randn(1, 6, 2, **make)
    found = []
    for kind in ("implicit", "exact"):
        theta, _ = dense_energies(u, [points], table, max_iters=3, gradient=kind, tol=0)
        loss = (theta * weigh).sum()
        if kind == "implicit":
            with pytest.warns(GradientWarning, match="minimum of F"):
                found.append(torch.autograd.grad(loss, u)[0])
        else:
            found.append(torch.autograd.grad(loss, u)[0])
    assert torch.equal(*found)


@pytest.mark.parametrize("strength", [0.5, 6.0])
def test_implicit_is_right_and_silent_at_convergence(device: str, strength: float) -> None:
    # warnings are errors
    u, f, g, m = inputs = draw(device, strength=strength)
    found = []
    for kind in ("implicit", "exact"):
        theta, facts = dense_energies(
            u, [f, g], m, max_iters=3000, tol=1e-11, gradient=kind, keep_every=50
        )
        assert facts[0] < 3000
        found.append(gradients(theta, inputs))
    for mine, exact in zip(*found, strict=True):
        assert torch.allclose(mine, exact, rtol=1e-4, atol=1e-8)


# ---- infer ----

EDGES = [[i, i + 1] for i in range(6) if i != 2 and i < 5] + [[i, i + 3] for i in range(3)]


def potts(n_labels: int = 3) -> pf.Field:
    weights = np.random.default_rng(5).normal(scale=2.0, size=len(EDGES))
    return pf.Field(6, n_labels=n_labels).add(pf.Potts(EDGES, weights))


def energies(field: pf.Field, device: str) -> Any:
    make = {"dtype": torch.float64, "device": device}
    return torch.randn(2, field.layout.size, **make).requires_grad_()


RULES: dict[str, dict[str, Any]] = {
    "fixed": {},
    "adaptive": {},
    "full-parallel": {},
    "adhoc": {},
    "momentum": {},
    "adam": {},
    "sweep": {},
    "shuffled": {"rule": "sweep", "order": "random"},
    "colored": {},
}


@any_updates
@pytest.mark.parametrize("rule", RULES)
def test_gradcheck_of_infer(rule: str, updates: int, device: str) -> None:
    if rule == "full-parallel" and updates == 50:
        pytest.skip("oscillates: its derivative doesn't fit into double precision")
    field = potts()
    options = {"rule": rule, **RULES[rule]}

    def run(u: Any) -> Any:
        return pt.infer(field, u, max_iters=updates, tol=0, seed=3, **options)

    assert torch.autograd.gradcheck(run, energies(field, device), fast_mode=True, atol=1e-5)


@any_updates
@pytest.mark.parametrize("kind", [pf.Potts, pf.Ising])
def test_gradcheck_of_infer_with_weights(kind: Any, updates: int, device: str) -> None:
    n_labels = 2 if kind is pf.Ising else 3
    field = pf.Field(6, n_labels=n_labels).add(pf.Pairwise([[0, 5]], np.eye(n_labels)))
    field = field.add(kind(EDGES, 1.0))
    weights = torch.randn(len(EDGES), dtype=torch.float64, device=device).requires_grad_()

    def run(u: Any, w: Any) -> Any:
        return pt.infer(field, u, step=0.6, weights=w, max_iters=updates, tol=0, init="unary")

    inputs = (energies(field, device), weights)
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True, atol=1e-6)


@pytest.mark.parametrize("init", ["uniform", "unary"])
def test_infer_equals_unrolled(init: str, device: str) -> None:
    field = potts()
    unary = energies(field, device)
    for updates in (0, 1, 7):
        found = []
        for gradient in ("exact", "unrolled"):
            q = pt.infer(field, unary, max_iters=updates, tol=0, gradient=gradient, init=init)
            if not q.requires_grad:  # no updates from the uniform start
                found.append(torch.zeros_like(unary))
            else:
                found.append(torch.autograd.grad(q[:, ::2].square().sum(), unary)[0])
        assert torch.allclose(*found, atol=1e-12)
        assert (found[0].abs().max() > 0) == (updates > 0 or init == "unary")


def test_infer_keeps_what_it_says(device: str) -> None:
    field = potts()
    unary = energies(field, device).detach()
    size = unary.numel() * unary.element_size()

    def saved(rule: str, updates: int, gradient: str = "exact") -> int:
        x = unary.clone().requires_grad_()
        return saved_bytes(
            lambda: pt.infer(field, x, rule, max_iters=updates, tol=0, gradient=gradient)
        )

    for rule, each in (("fixed", 1), ("momentum", 2), ("adam", 3), ("sweep", 1)):
        assert saved(rule, 9) - saved(rule, 4) == 5 * each * size
    assert saved("fixed", 9, "implicit") == saved("fixed", 4, "implicit")


def test_infer_implicit_falls_back_with_one_warning(device: str) -> None:
    field = pf.Field(6, n_labels=3).add(pf.Potts(EDGES, 0.3))  # one minimum: no saddles
    unary = energies(field, device)
    found = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for gradient in ("exact", "implicit", "implicit"):
            q = pt.infer(
                field, unary, "sweep", order="random", max_iters=2, tol=0, gradient=gradient
            )
            found[gradient] = torch.autograd.grad(q[:, 0].sum(), unary)[0]
    assert [w.category for w in caught] == [GradientWarning]
    assert "not converged" in str(caught[0].message)
    assert torch.allclose(found["implicit"], found["exact"], atol=1e-12)


def test_adam_with_variables_that_do_not_move(device: str) -> None:
    field = pf.Field(7, n_labels=3).add(pf.Potts(EDGES, 0.3))
    unary = torch.randn(7, 3, dtype=torch.float64, device=device)
    unary[6] = 0.0
    unary.requires_grad_()
    pt.infer(field, unary, "adam", max_iters=5, tol=0).square().sum().backward()
    assert torch.isfinite(unary.grad).all()


def test_infer_stops_early_with_the_gradient_of_the_updates_made(device: str) -> None:
    field = pf.Field(6, n_labels=3).add(pf.Potts(EDGES, 0.4))
    unary = energies(field, device)
    q = pt.infer(field, unary, tol=1e-2)
    (found,) = torch.autograd.grad(q.square().sum(), unary)
    close = []
    for updates in range(1, 12):
        q = pt.infer(field, unary, max_iters=updates, gradient="unrolled")
        (expected,) = torch.autograd.grad(q.square().sum(), unary)
        close.append(bool(torch.allclose(found, expected, atol=1e-12)))
    assert sum(close) == 1 and not close[0]
