"""The layer: the same marginals as `proxfield.DenseCRF`, and gradients of everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import proxfield as pf  # noqa: E402
import proxfield.torch as pt  # noqa: E402
from proxfield.core.filters.torch import plans  # noqa: E402
from proxfield.core.filters.torch.operator import PlannedOperator, eigenvalue_range  # noqa: E402
from proxfield.errors import InputError  # noqa: E402
from proxfield.torch.dense import dense_energies  # noqa: E402
from proxfield.torch.solve import curvature  # noqa: E402

TABLE = [[0.0, 2.0, 1.0], [2.0, 0.5, -1.0], [1.0, -1.0, 0.0]]


def scene(device: str = "cpu", shape: tuple[int, ...] = (5, 6), n_labels: int = 3) -> Any:
    """Two images (floats, 0 to 1) and logits, in float64."""
    make = {"dtype": torch.float64, "device": device}
    return torch.rand(2, 3, *shape, **make), torch.randn(2, n_labels, *shape, **make)


@pytest.mark.parametrize("normalization", ["none", "before", "after", "symmetric"])
@pytest.mark.parametrize("self_message", [True, False])
@pytest.mark.parametrize("compatibility", [None, [-1.0, -0.5, -2.0], TABLE])
def test_same_marginals_as_the_field(
    device: str, normalization: str, self_message: bool, compatibility: Any, monkeypatch: Any
) -> None:
    image, logits = scene(device, (7, 9))
    shared = {
        "normalization": normalization,
        "self_message": self_message,
        "spatial_weight": 0.4,
        "bilateral_weight": 0.7,
        "spatial_sigma": (2.0, 1.5),
        "bilateral_sigma": 4.0,
        "bilateral_color": 0.4,
    }
    logits = logits.float().double()  # what the field keeps of energies
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float64)
    layer = pt.DenseCRF(
        3, **shared, tol=0, max_iters=10,
        compatibility="potts" if compatibility is None else compatibility,
    ).to(device)  # fmt: skip
    with torch.no_grad():
        out = layer(image, logits).exp().cpu().numpy()
    for k in range(2):
        crf = pf.DenseCRF(
            image[k].cpu().numpy(),
            energies=-logits[k].cpu().numpy(),
            compatibility=compatibility,
            channel_axis=0,
            labels_axis=0,
            filter="exact",
            **shared,
        )
        start = logits[k].softmax(0).flatten(1).T.cpu().numpy()  # in double precision
        found = pf.infer(crf, "fixed", init=start, max_iters=10, tol=0, kernels="reference").q
        assert np.abs(out[k].reshape(3, -1).T - found.reshape(-1, 3)).max() < 1e-9


@pytest.mark.parametrize("normalization", ["none", "before", "symmetric"])
@pytest.mark.parametrize("self_message", [True, False])
@pytest.mark.parametrize("table", [None, TABLE])
def test_bound_on_the_curvature_is_that_of_the_term(
    device: str, normalization: str, self_message: bool, table: Any
) -> None:
    points = np.random.default_rng(0).normal(size=(2, 30, 2))
    kind = options(self_message, normalization)
    expected = []
    for mine in points:
        term = pf.Gaussian(mine, 5.0, table, filter="exact", **kind)
        expected.append(term.spectrum(pf.Field(30, n_labels=3).layout)[1])
    operator = PlannedOperator(torch.tensor(points, device=device), normalization, self_message)
    matrix = -np.eye(3) if table is None else np.array(table)
    tables = torch.tensor(5.0 * matrix, device=device)[None]
    found = curvature([operator.range()], tables, 2)
    mine = eigenvalue_range(torch.tensor(points, device=device), normalization, self_message)
    assert all(torch.allclose(a, b) for a, b in zip(mine, operator.range(), strict=True))
    assert torch.allclose(found.cpu(), torch.tensor(expected, dtype=torch.float64), rtol=1e-6)


def test_compatibilities_are_symmetrized(device: str) -> None:
    image, logits = scene(device)
    given = torch.tensor([[0.0, 2.0, 1.0], [0.0, 0.0, 1.0], [-1.0, 0.5, 0.0]])
    out = [
        pt.DenseCRF(3, compatibility=c, bilateral_weight=0).to(device)(image, logits)
        for c in (given, 0.5 * (given + given.T))
    ]
    assert torch.equal(*out)


@pytest.mark.parametrize("gradient", ["exact", "implicit", "unrolled"])
def test_weight_0_omits_a_term(device: str, gradient: str, monkeypatch: pytest.MonkeyPatch) -> None:
    image, logits = scene(device)
    kind = {"gradient": gradient, "bilateral_color": 0.3, "max_iters": 4}
    alone = pt.DenseCRF(3, bilateral_weight=0, **kind).to(device)
    assert alone.terms == ["spatial"]
    assert alone.log_bilateral_color is None
    assert torch.equal(alone(None, logits), alone(image, logits))  # the image isn't looked at
    none = pt.DenseCRF(3, spatial_weight=0.0, bilateral_weight=0.0, **kind).to(device)
    monkeypatch.setattr("proxfield.torch.dense.PlannedOperator", None)  # nothing to filter
    given = logits.clone().requires_grad_()
    out = none(None, given)
    assert torch.allclose(out, torch.log_softmax(logits, dim=1))
    out[:, 0].sum().backward()
    assert given.grad.abs().max() > 0


def test_potts_has_a_name(device: str) -> None:
    image, logits = scene(device)
    outs = [
        pt.DenseCRF(3, compatibility=c, bilateral_color=0.3, max_iters=3).to(device)(image, logits)
        for c in ("potts", None)
    ]
    assert torch.equal(*outs)


def test_volumes(device: str) -> None:
    image, logits = scene(device, (3, 4, 5))
    layer = pt.DenseCRF(3, dimensions=3, bilateral_color=0.3, max_iters=5).to(device)
    out = layer(image, logits)
    assert out.shape == logits.shape
    assert torch.allclose(out.exp().sum(1), torch.ones_like(out[:, 0]))


def options(self_message: bool = True, normalization: str = "symmetric") -> dict[str, Any]:
    return {"normalization": normalization, "self_message": self_message}


@pytest.mark.parametrize("normalization", ["none", "symmetric", "before"])
@pytest.mark.parametrize("self_message", [True, False])
def test_implicit_equals_unrolled_at_convergence(
    device: str, normalization: str, self_message: bool
) -> None:
    make = {"dtype": torch.float64, "device": device}
    u = torch.randn(2, 8, 3, **make).requires_grad_()
    f, g = torch.randn(1, 8, 2, **make), torch.randn(2, 8, 3, **make)
    inputs = (u, f.requires_grad_(), g.requires_grad_(), torch.randn(2, 3, 3, **make))
    inputs[3].requires_grad_()
    weigh = torch.randn_like(u)
    kind = options(self_message, normalization)
    grads = []
    for implicit in (True, False):
        table = 0.3 * (inputs[3] + inputs[3].mT)
        if implicit:
            theta, facts = dense_energies(
                u, [f, g], table, max_iters=500, tol=1e-13, gradient="implicit", **kind
            )
            assert facts[0] < 500
        else:
            updates = int(facts[0]) + 20
            theta, _ = dense_energies(
                u, [f, g], table, max_iters=updates, gradient="unrolled", **kind
            )
        grads.append(torch.autograd.grad((theta * weigh).sum(), inputs))
    for mine, recorded in zip(*grads, strict=True):
        assert torch.allclose(mine, recorded, atol=1e-8)


@pytest.mark.parametrize("compatibility", ["potts", "diagonal", "full"])
def test_gradcheck(device: str, compatibility: str) -> None:
    image, logits = scene(device, (2, 3))
    layer = pt.DenseCRF(
        3, compatibility=compatibility, spatial_weight=0.5, bilateral_weight=0.6,
        bilateral_color=(0.4, 0.5, 0.6), bilateral_sigma=2.0, spatial_sigma=(1.0, 2.0),
        embedding_weight=0.4, embedding_sigma=3.0, max_iters=300, tol=1e-13,
    ).double().to(device)  # fmt: skip
    embeddings = torch.randn(2, 2, 2, 3, dtype=torch.float64, device=device)
    names = [name for name, _ in layer.named_parameters()]
    assert len(names) == (5 if compatibility == "potts" else 6)

    def run(image: Any, logits: Any, embeddings: Any, *values: Any) -> Any:
        given = dict(zip(names, values, strict=True))
        kwargs = {"embeddings": embeddings}
        return torch.func.functional_call(layer, given, (image, logits), kwargs)

    inputs = [image, logits, embeddings, *(p.detach().clone() for p in layer.parameters())]
    inputs = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True, atol=1e-6)


@pytest.mark.parametrize("gradient", ["exact", "unrolled"])
@pytest.mark.parametrize("output", ["marginals", "log-marginals", "energies"])
def test_outputs_and_training_step(device: str, gradient: str, output: str) -> None:
    image, logits = scene(device)
    layer = pt.DenseCRF(
        3, gradient=gradient, output=output, bilateral_color=0.3, spatial_weight=0.5,
        bilateral_weight=0.5,
    ).to(device)  # fmt: skip
    logits.requires_grad_()
    out = layer(image, logits)
    as_marginals = {"marginals": out, "log-marginals": out.exp(), "energies": (-out).softmax(1)}
    layer.output = "marginals"
    assert torch.allclose(as_marginals[output], layer(image, logits))
    assert out.is_contiguous()  # nll_loss doesn't take anything else
    out.square().sum().backward()
    assert logits.grad.abs().max() > 0
    assert all(p.grad is not None for p in layer.parameters())


def test_what_not_to_learn() -> None:
    layer = pt.DenseCRF(3, learn=("bandwidths",), compatibility="full")
    still = {name for name, p in layer.named_parameters() if not p.requires_grad}
    assert still == {"log_weights", "compatibility"}
    image, logits = scene()
    layer(image, logits).square().sum().backward()
    assert layer.log_weights.grad is None
    assert layer.log_spatial_sigma.grad is not None


def test_marginals_do_not_depend_on_the_gradient(device: str) -> None:
    image, logits = scene(device)
    layer = pt.DenseCRF(3, tol=0, compatibility=TABLE, spatial_weight=2.0).to(device)
    first = layer(image, logits)
    for gradient in ("implicit", "unrolled"):
        layer.gradient = gradient
        assert torch.allclose(first, layer(image, logits), atol=1e-10)


def test_repulsive_weights_converge(device: str) -> None:
    image, logits = scene(device)
    kind = {"spatial_weight": -30.0, "spatial_sigma": 3.0, "bilateral_weight": 0}
    kind["output"] = "marginals"
    undamped = pt.DenseCRF(3, step=1.0, max_iters=200, **kind).to(device)
    certified = pt.DenseCRF(3, max_iters=200, **kind).to(device)

    def still_moves(layer: Any) -> float:
        with torch.no_grad():
            before = layer(image, logits)
            layer.max_iters += 1
            return float((layer(image, logits) - before).abs().max())

    assert still_moves(undamped) > 0.1  # oscillates
    assert still_moves(certified) < 1e-4


@pytest.mark.parametrize("output", ["log-marginals", "marginals"])
@pytest.mark.parametrize("gradient", ["exact", "implicit", "unrolled"])
def test_impossible_labels(device: str, gradient: str, output: str) -> None:
    image, logits = scene(device)
    energies = -logits
    energies[0, 1, :, 2:] = torch.inf
    energies.requires_grad_()
    layer = pt.DenseCRF(
        3, gradient=gradient, bilateral_color=0.3, compatibility=TABLE, max_iters=600, tol=0,
        spatial_weight=0.5, bilateral_weight=0.5, output=output,
    ).to(device)  # fmt: skip
    out = layer(image, energies=energies)
    assert ((out if output == "marginals" else out.exp())[0, 1, :, 2:] == 0).all()
    assert torch.isfinite(out).all()
    out.square().sum().backward()
    assert torch.isfinite(energies.grad).all()
    assert (energies.grad[0, 1, :, 2:] == 0).all()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


def test_operator_is_well_formed(device: str) -> None:
    make = {"dtype": torch.float64, "device": device}
    u = torch.randn(2, 5, 3, **make).requires_grad_()
    f = [torch.randn(1, 5, 2, **make).requires_grad_(), torch.randn(2, 5, 1, **make)]
    table = (-torch.eye(3, **make)).repeat(2, 1, 1).requires_grad_()
    size = torch.full((2, 1, 1), 0.8, **make).requires_grad_()
    for keep_every, implicit_tol in ((1, -1.0), (2, -1.0), (0, 1e-2)):
        limits = (keep_every, True, implicit_tol, 1e-10, 50)
        given = (u, f, table, size, "symmetric", True, "exact", 50, 1e-4, *limits, True, [5])
        torch.library.opcheck(torch.ops.proxfield.dense_energies, given)


@pytest.mark.parametrize("tol", [0.0, 0.3])
@pytest.mark.parametrize("gradient", ["exact", "implicit", "unrolled"])
def test_compiles_whole(device: str, gradient: str, tol: float) -> None:
    image, logits = scene(device)
    layer = pt.DenseCRF(
        3, gradient=gradient, bilateral_color=0.3, max_iters=400 if gradient == "implicit" else 6,
        spatial_weight=-2.5, bilateral_weight=0.5, tol=min(tol, 1e-9) if gradient == "implicit"
        else tol,
    ).to(device)  # fmt: skip
    torch._dynamo.reset()  # earlier tests count towards its limit on compilations
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = []
    for function in (layer, compiled):
        x = logits.clone().requires_grad_()
        layer.zero_grad()
        out = function(image, x)
        out.square().sum().backward()
        found.append([out, x.grad, *(p.grad.clone() for p in layer.parameters())])
    for eager, traced in zip(*found, strict=True):
        assert torch.allclose(eager, traced, atol=1e-8)


def test_no_second_derivatives(device: str) -> None:
    image, logits = scene(device)
    logits.requires_grad_()
    out = pt.DenseCRF(3, bilateral_color=0.3).to(device)(image, logits).square().sum()
    (grad,) = torch.autograd.grad(out, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        grad.square().sum().backward()


@pytest.mark.parametrize("gradient", ["exact", "unrolled"])
def test_plans_are_made_once_a_step(device: str, gradient: str, monkeypatch: Any) -> None:
    made = []
    make = plans.make_plan
    monkeypatch.setattr(plans, "make_plan", lambda *a: made.append(1) or make(*a))
    pt.clear_plans()
    image, logits = scene(device)
    layer = pt.DenseCRF(
        3, gradient=gradient, bilateral_color=0.3, max_iters=4, spatial_weight=0.5,
        bilateral_weight=0.5,
    ).to(device)  # fmt: skip
    for _ in range(2):
        layer(image, logits.requires_grad_()).square().sum().backward()
        layer.log_spatial_sigma.data += 0.1
        layer.log_bilateral_color.data += 0.1
    assert len(made) == 4  # two terms, two steps


@pytest.mark.parametrize(
    ("kwargs", "what"),
    [
        ({"normalization": "sideways"}, "normalization"),
        ({"gradient": "guess"}, "gradient"),
        ({"output": "labels"}, "output"),
        ({"learn": ("nothing",)}, "learn"),
        ({"step": 3.0}, "step"),
        ({"spatial_sigma": -1.0}, "spatial_sigma"),
        ({"compatibility": [1.0, 2.0]}, "compatibility"),
        ({"compatibility": "none"}, "compatibility"),
        ({"max_iters": -1}, "max_iters"),
        ({"keep_every": 0}, "keep_every"),
        ({"max_iters": "all"}, "max_iters='all', expected a whole number or 'preset'"),
        ({"max_iters": 2.5}, "max_iters=2.5, expected a whole number"),
        ({"preset": "strong"}, "preset='strong', expected one of: gentle, krahenbuehl"),
        ({"embedding_weight": None}, "embedding_weight=None, expected a number; 0 omits the term"),
        ({"spatial_weight": float("nan")}, "spatial_weight=nan, expected a number"),
        ({"iterations": 5}, "no argument 'iterations'; it is called max_iters"),
        ({"adjoint_iterations": 5}, "it is called adjoint_max_iters"),
    ],
)
def test_arguments_are_checked(kwargs: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        pt.DenseCRF(3, **kwargs)


@pytest.mark.parametrize("bad", [2.5, 0, True, "2"])
def test_numbers_of_labels_and_axes_are_whole(bad: Any) -> None:
    with pytest.raises(InputError, match=f"^n_labels={bad!r}, expected a whole number, 1 or more"):
        pt.DenseCRF(bad)
    with pytest.raises(InputError, match=f"^dimensions={bad!r}, expected a whole number"):
        pt.DenseCRF(2, dimensions=bad)
    assert isinstance(pt.DenseCRF(2.0).n_labels, int)


def test_inputs_are_checked() -> None:
    image, logits = scene()
    layer = pt.DenseCRF(3)
    for args, kwargs, what in (
        ((image,), {}, "one of them"),
        ((image, logits), {"energies": logits}, "one of them"),
        ((image, logits[:, :2]), {}, "expected"),
        ((None, logits), {}, "needs an image"),
        ((image[..., :3], logits), {}, "image of shape"),
    ):
        with pytest.raises(InputError, match=what):
            layer(*args, **kwargs)
