"""What works with the torch layer and what doesn't: one test per row of the table in the docs."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import proxfield as pf  # noqa: E402
import proxfield.torch as pt  # noqa: E402
from proxfield.core.filters.torch import operator  # noqa: E402
from proxfield.core.filters.torch.filter import FILTER  # noqa: E402
from proxfield.errors import InputWarning, UnsupportedError  # noqa: E402
from proxfield.torch import layer, solve  # noqa: E402

pytestmark = pytest.mark.filterwarnings(  # torch's own, in its forward mode
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)
ROWS = {
    "`torch.compile`": "test_compile_dynamic",
    "`torch.export`": "test_export",
    "ONNX": "test_onnx",
    "empty batches": "test_empty_batches",
    "`torch.func.vmap`": "test_vmap",
    "`torch.func.grad`, `vjp`, `jacrev`": "test_reverse_mode",
    "`torch.func.jvp`, `jacfwd`": "test_forward_mode",
    "second derivatives": "test_second_derivatives",
    "autocast, half precision": "test_half_precision",
    "`channels_last`, strides": "test_strides",
    "`no_grad`, `inference_mode`": "test_without_gradients",
    "`torch.utils.checkpoint`": "test_checkpoint",
    "`state_dict`, copies, pickle": "test_copies",
    "NaN and infinite inputs": "test_named_nan",
    "ranges of images": "test_image_ranges",
    "numpy arrays, devices, order of axes": "test_clear_errors",
}
"""Tests by the rows of the table (those of the last three are in test_torch_inputs.py)."""
KIND: dict[str, Any] = {
    "bilateral_color": 0.4,
    "bilateral_sigma": 3.0,
    "spatial_weight": 0.6,
    "bilateral_weight": 0.8,
}
FIELD = pf.Field(4, n_labels=3).add(pf.Potts([[0, 1], [1, 2], [2, 3]], 0.7))


def test_every_row_has_a_test() -> None:
    here = Path(__file__)
    text = (here.parents[2] / "docs/how-to/torch.md").read_text(encoding="utf-8")
    table = text.split("## What works with it")[1].split("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")]
    tests = here.read_text("utf-8") + (here.parent / "test_torch_inputs.py").read_text("utf-8")
    assert rows[2:] == list(ROWS)
    assert all(f"def {name}(" in tests for name in ROWS.values())


def scene(device: str = "cpu", images: int = 3) -> tuple[Any, Any]:
    make = {"dtype": torch.float64, "device": device}
    return torch.rand(images, 3, 4, 5, **make), torch.randn(images, 3, 4, 5, **make)


class Loss(torch.nn.Module):  # type: ignore[misc]
    """`DenseCRFLoss` with the arguments of a layer."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.loss = pt.DenseCRFLoss(bilateral_color=0.4, reduction="none", **options)

    def forward(self, image: Any, logits: Any) -> Any:
        return self.loss(image, logits=logits)


class Smooth(torch.nn.Module):  # type: ignore[misc]
    """`gaussian_filter` with the arguments of a layer."""

    def forward(self, image: Any, logits: Any) -> Any:
        f, v = (x.movedim(1, -1).flatten(1, 2) for x in (image, logits))
        return pt.gaussian_filter(v, f, sigma=0.5, batch=True)


def model(kind: str, **options: Any) -> Any:
    if kind == "loss":
        return Loss(**options)
    if kind == "filter":
        return Smooth()
    limits = {"max_iters": 200, "tol": 1e-13} if kind == "implicit" else {"max_iters": 3, "tol": 0}
    return pt.DenseCRF(3, gradient=kind, **{**KIND, **limits, **options}).double()


KINDS = ["exact", "implicit", "unrolled", "loss", "filter"]
MODELS = pytest.mark.parametrize("kind", KINDS)
WITH_FILTERS = pytest.mark.parametrize(
    ("kind", "filter"),
    [*((kind, "exact") for kind in KINDS), ("exact", "lattice"), ("loss", "lattice")],
)


# ---- graphs ----


@pytest.mark.parametrize("kind", ["exact", "loss"])
def test_compile_dynamic(device: str, kind: str) -> None:
    crf = model(kind).to(device)
    torch._dynamo.reset()
    compiled = torch.compile(crf, dynamic=True, fullgraph=True, backend="aot_eager")
    image, logits = scene(device)
    for size in (slice(0, 3), slice(0, 2)):
        found = []
        for run in (crf, compiled):
            x = logits[size].clone().requires_grad_()
            out = run(image[size], x)
            found.append((out, torch.autograd.grad(out.square().sum(), x)[0]))
        for eager, traced in zip(*found, strict=True):
            assert torch.allclose(eager, traced, atol=1e-9)


def exported(crf: Any, image: Any, logits: Any) -> Any:
    sizes = {0: torch.export.Dim("images"), 2: torch.export.Dim("height", min=2)}
    shapes = {"image": sizes, "logits": sizes}
    with torch.no_grad():
        return torch.export.export(crf, (image, logits), dynamic_shapes=shapes)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # of torch.export.load
@pytest.mark.parametrize("kind", ["exact", "loss", "filter"])
def test_export(device: str, kind: str, tmp_path: Path) -> None:
    crf = model(kind).to(device)
    image, logits = scene(device)
    stream = io.BytesIO()
    torch.export.save(exported(crf, image, logits), stream)
    stream.seek(0)
    program = torch.export.load(stream).module()
    for images, rows in ((3, 4), (1, 4), (2, 3), (0, 4)):
        given = image[:images, :, :rows], logits[:images, :, :rows]
        assert torch.equal(program(*given), crf(*given))
    if kind == "exact" and device == "cpu":
        torch.export.save(torch.export.load(io.BytesIO(stream.getvalue())), tmp_path / "crf.pt2")
        torch.save((image, logits, crf(image, logits).detach()), tmp_path / "given.pt")
        code = (  # in a new process the import registers the operators
            "import torch; from proxfield.torch import DenseCRF; "
            "image, logits, expected = torch.load('given.pt'); "
            "program = torch.export.load('crf.pt2').module(); "
            "assert torch.equal(program(image, logits), expected)"
        )
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, check=True)


def test_infer_is_not_exported() -> None:
    class Model(torch.nn.Module):  # type: ignore[misc]
        def forward(self, unary: Any) -> Any:
            return pt.infer(FIELD, unary)

    with pytest.raises(UnsupportedError, match="call it outside of the exported program"):
        torch.export.export(Model(), (torch.zeros(4, 3),))


@pytest.fixture
def as_for_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer as ``torch.onnx.export`` traces it, without the packages that this needs."""
    for module in (operator, solve, layer):
        monkeypatch.setattr(module, "exporting_onnx", lambda: True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"spatial_weight": -3.0, "normalization": "after", "self_message": False},
        {"compatibility": "full", "step": 0.7, "normalization": "none"},
    ],
)
def test_onnx(options: dict[str, Any], request: pytest.FixtureRequest) -> None:
    image, logits = scene()
    crf = model("exact", **options)
    expected = crf(image, logits)
    request.getfixturevalue("as_for_onnx")
    assert torch.allclose(crf(image, logits), expected, atol=1e-12)
    if not options:
        graph = exported(crf, image, logits).graph
        used = {str(node.target) for node in graph.nodes if node.op == "call_function"}
        assert not any("proxfield" in name or "linalg" in name for name in used)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [({"filter": "lattice"}, 'filter="exact"'), ({"compatibility": "full"}, "pass a step=")],
)
@pytest.mark.usefixtures("as_for_onnx")
def test_what_onnx_does_not_have(options: dict[str, Any], remedy: str) -> None:
    with (
        pytest.warns(InputWarning, match=remedy),
        pytest.raises(UnsupportedError, match=remedy),
    ):
        model("exact", **options)(*scene())


@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_onnx_runtime(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    image, logits = (x.float() for x in scene())
    crf = model("exact").float().eval()
    sizes = {0: torch.export.Dim("images")}
    with torch.no_grad():
        torch.onnx.export(
            crf, (image, logits), tmp_path / "crf.onnx", dynamo=True, verbose=False,
            dynamic_shapes={"image": sizes, "logits": sizes},
        )  # fmt: skip
        session = runtime.InferenceSession(tmp_path / "crf.onnx")
        for images in (1, 3):
            given = {"image": image[:images].numpy(), "logits": logits[:images].numpy()}
            (out,) = session.run(None, given)
            assert np.abs(out - crf(image[:images], logits[:images]).numpy()).max() < 1e-5


# ---- batches ----


@WITH_FILTERS
def test_empty_batches(device: str, kind: str, filter: str) -> None:
    options = {} if kind == "filter" else {"filter": filter, "normalization": "none"}
    crf = model(kind, **options).to(device)
    image, logits = scene(device)
    empty = logits[:0].clone().requires_grad_()
    out = crf(image[:0], empty)
    assert out.shape == (0, *crf(image, logits).shape[1:])
    assert (out.dtype, out.device) == (logits.dtype, logits.device)
    out.sum().backward()
    assert empty.grad.shape == empty.shape
    assert all(p.grad is not None and (p.grad == 0).all() for p in crf.parameters())


@pytest.mark.parametrize("gradient", ["exact", "implicit", "unrolled"])
def test_empty_batches_of_fields(device: str, gradient: str) -> None:
    unary = torch.zeros(0, 4, 3, device=device, requires_grad=True)
    weights = torch.ones(3, device=device, requires_grad=True)
    out = pt.infer(FIELD, unary, weights=weights, gradient=gradient, max_iters=3)
    out.sum().backward()
    assert out.shape == unary.grad.shape == (0, 4, 3)
    assert (weights.grad == 0).all()


@pytest.mark.parametrize("gradient", ["exact", "implicit", "unrolled"])
def test_infer_without_a_tolerance(device: str, gradient: str) -> None:
    unary = torch.linspace(0, 1, 12, device=device).reshape(4, 3)
    out = pt.infer(FIELD, unary, gradient=gradient, max_iters=5, tol=None)
    assert torch.equal(out, pt.infer(FIELD, unary, gradient=gradient, max_iters=5, tol=1e-30))


# ---- torch.func ----


@MODELS
def test_vmap(device: str, kind: str) -> None:
    crf = model(kind).to(device)
    image, logits = scene(device)
    one_by_one = torch.func.vmap(lambda i, x: crf(i[None], x[None])[0])
    assert torch.allclose(one_by_one(image, logits), crf(image, logits), atol=1e-12)
    shared = torch.func.vmap(lambda x: crf(image, x), in_dims=1, out_dims=1)
    pairs = torch.stack([logits, logits.flip(0)], dim=1)
    expected = torch.stack([crf(image, x) for x in pairs.unbind(1)], dim=1)
    assert torch.allclose(shared(pairs), expected, atol=1e-12)
    alone = torch.func.vmap(lambda i: crf(i[None], logits[:1])[0])  # images, with the same logits
    expected = torch.cat([crf(i[None], logits[:1]) for i in image])
    assert torch.allclose(alone(image), expected, atol=1e-12)


@pytest.mark.parametrize("dims", [(None, 2, None), (1, 3, None), (3, None, None), (0, 0, None)])
@pytest.mark.parametrize("shared", [True, False])
def test_vmap_of_an_operator(dims: tuple[int | None, ...], shared: bool) -> None:
    make = {"dtype": torch.float64}
    features, values = torch.rand(1 if shared else 3, 6, 2, **make), torch.rand(3, 6, 4, **make)
    given = [
        x if d is None else torch.stack([x, x.flip(1)], dim=d)
        for x, d in zip((features, values), dims, strict=False)
    ]
    found = torch.func.vmap(FILTER, in_dims=dims)(*given, "exact")
    for k in range(2):
        one = [x if d is None else x.select(d, k) for x, d in zip(given, dims, strict=False)]
        assert torch.allclose(found[k], FILTER(*one, "exact"), atol=1e-12)


@pytest.mark.parametrize("kind", ["exact", "implicit", "unrolled"])
def test_vmap_over_parameters(device: str, kind: str) -> None:
    crfs = [model(kind, spatial_weight=w, tol=0.1).to(device) for w in (0.5, 1.0, -2.0)]
    image, logits = scene(device)
    stacked = torch.func.stack_module_state(crfs)  # signs of weights are buffers

    def run(parameters: Any, buffers: Any) -> Any:
        return torch.func.functional_call(crfs[0], (parameters, buffers), (image, logits))

    expected = torch.stack([crf(image, logits) for crf in crfs])
    assert torch.allclose(torch.func.vmap(run)(*stacked), expected, atol=1e-12)


def test_vmap_of_infer() -> None:
    unary = torch.randn(2, 4, 3, dtype=torch.float64)
    with pytest.raises(UnsupportedError, match=r"pass a batch of unary energies"):
        torch.func.vmap(lambda u: pt.infer(FIELD, u))(unary)

    def unrolled(u: Any) -> Any:
        return pt.infer(FIELD, u, gradient="unrolled", max_iters=3)

    assert torch.allclose(torch.func.vmap(unrolled)(unary), unrolled(unary))


@WITH_FILTERS
def test_reverse_mode(device: str, kind: str, filter: str) -> None:
    crf = model(kind, **({} if kind == "filter" else {"filter": filter})).to(device)
    image, logits = scene(device)
    given = {name: p.detach() for name, p in crf.named_parameters()}

    def loss(parameters: Any, image: Any, logits: Any) -> Any:
        return torch.func.functional_call(crf, parameters, (image, logits)).square().sum()

    def gradients(k: slice) -> Any:
        x = logits[k].clone().requires_grad_()
        crf.zero_grad()
        loss(dict(crf.named_parameters()), image[k], x).backward()
        return {name: p.grad.clone() for name, p in crf.named_parameters()}, x.grad

    found = torch.func.grad(loss, argnums=(0, 2))(given, image, logits)
    close(found, gradients(slice(None)))

    def of_one(parameters: Any, image: Any, logits: Any) -> Any:
        return loss(parameters, image[None], logits[None])

    each = torch.func.vmap(torch.func.grad(of_one, argnums=(0, 2)), in_dims=(None, 0, 0))
    to_parameters, to_logits = each(given, image, logits)
    expected = gradients(slice(1, 2))
    close(({k: x[1] for k, x in to_parameters.items()}, to_logits[1:2]), expected)
    inside = torch.func.grad(lambda x: torch.func.vmap(of_one, (None, 0, 0))(given, image, x).sum())
    assert torch.allclose(inside(logits)[1:2], expected[1], atol=1e-10)

    def some(x: Any) -> Any:
        return crf(image, x).reshape(3, -1)[:, :2]

    expected = torch.autograd.functional.jacobian(some, logits)
    assert torch.allclose(torch.func.jacrev(some)(logits), expected, atol=1e-10)


def close(found: Any, expected: Any) -> None:
    (parameters, x), (more, y) = found, expected
    assert torch.allclose(x, y, atol=1e-10)
    assert parameters.keys() == more.keys()
    assert all(torch.allclose(parameters[k], more[k], atol=1e-10) for k in more)


@pytest.mark.parametrize("gradient", ["exact", "implicit"])
def test_reverse_mode_of_infer(device: str, gradient: str) -> None:
    unary = torch.randn(2, 4, 3, dtype=torch.float64, device=device)

    def run(u: Any) -> Any:
        return pt.infer(FIELD, u, gradient=gradient, tol=1e-12)

    u = unary.clone().requires_grad_()
    run(u).square().sum().backward()
    assert torch.allclose(torch.func.grad(lambda u: run(u).square().sum())(unary), u.grad)
    expected = torch.autograd.functional.jacobian(run, unary)
    assert torch.allclose(torch.func.jacrev(run)(unary), expected)


@WITH_FILTERS
def test_forward_mode(device: str, kind: str, filter: str) -> None:
    more = {} if kind in ("loss", "filter") else {"compatibility": "full"}
    options = {"filter": filter, "normalization": "after", "self_message": False, **more}
    crf = model(kind, **({} if kind == "filter" else options)).to(device)
    image, logits = scene(device)
    given = {name: p.detach() for name, p in crf.named_parameters()}

    def run(parameters: Any, logits: Any) -> Any:
        return torch.func.functional_call(crf, parameters, (image, logits))

    towards = {name: torch.randn_like(p) for name, p in given.items()}, torch.randn_like(logits)
    out, change = torch.func.jvp(run, (given, logits), towards)
    back = torch.randn_like(out)
    _, pull = torch.func.vjp(run, given, logits)
    to_parameters, to_logits = pull(back)
    expected = (to_logits * towards[1]).sum()
    expected += sum((to_parameters[k] * towards[0][k]).sum() for k in given)
    assert (back * change).sum().item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-9)
    assert change.abs().max() > 1e-3


def test_what_forward_mode_does_not_have() -> None:
    image, logits = scene()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(logits, logits)
        with pytest.raises(UnsupportedError, match=r"use torch\.func\.jvp"):
            model("exact")(image, dual)
    unary = torch.randn(4, 3)
    with pytest.raises(UnsupportedError, match='use gradient="unrolled"'):
        torch.func.jvp(lambda u: pt.infer(FIELD, u), (unary,), (unary,))


@pytest.mark.parametrize("kind", ["exact", "implicit", "loss"])
def test_second_derivatives(device: str, kind: str) -> None:
    image, logits = scene(device, 1)

    def squared_gradient(crf: Any) -> Any:
        x = logits.clone().requires_grad_()
        (grad,) = torch.autograd.grad(crf(image, x).sum(), x, create_graph=True)
        grad.square().sum().backward()
        return x.grad

    with pytest.raises(RuntimeError, match='gradient="unrolled" has those'):
        squared_gradient(model(kind).to(device))
    with pytest.raises(RuntimeError, match='gradient="unrolled" has those'):
        crf = model(kind).to(device)
        torch.func.hessian(lambda x: crf(image, x).sum())(logits)
    if kind == "exact":
        crf = model("unrolled", learn=("weights", "compatibility"), output="energies").to(device)
        small = logits[..., :2, :2].clone().requires_grad_()
        run = [lambda x: crf(image[..., :2, :2], x).square().sum(), small]
        assert torch.autograd.gradgradcheck(*run, fast_mode=True)


# ---- ordinary use ----


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["exact", "implicit", "unrolled", "loss"])
def test_half_precision(device: str, kind: str, dtype: Any) -> None:
    crf = model(kind).to(device).float()
    image, logits = (x.float() for x in scene(device))
    expected = crf(image.to(dtype).float(), logits.to(dtype).float())
    x = logits.to(dtype).requires_grad_()
    out = crf(image.to(dtype), x)
    assert out.dtype == torch.float32
    assert torch.allclose(out, expected)
    out.square().sum().backward()
    assert x.grad.dtype == dtype
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.allclose(crf(image, logits), crf(image.float(), logits), atol=0)
        within = crf(image, logits)
    assert torch.equal(within, crf(image, logits))


@MODELS
def test_strides(device: str, kind: str) -> None:
    crf = model(kind).to(device)
    image, logits = scene(device)
    last = [x.contiguous(memory_format=torch.channels_last) for x in (image, logits)]
    wide = [torch.cat([x, x], dim=-1)[..., :5] for x in (image, logits)]
    expected = crf(image, logits)
    for given in (last, wide):
        assert not given[1].is_contiguous()
        assert torch.equal(crf(*given), expected)


@MODELS
def test_without_gradients(device: str, kind: str) -> None:
    crf = model(kind).to(device)
    image, logits = scene(device)
    expected = crf(image, logits.requires_grad_())
    assert expected.requires_grad
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = crf(image, logits)
        assert not out.requires_grad
        assert torch.equal(out, expected)


@pytest.mark.parametrize("kind", ["exact", "implicit", "unrolled", "loss"])
def test_checkpoint(device: str, kind: str) -> None:
    crf = model(kind).to(device)
    image, logits = scene(device)
    found = []
    for run in (crf, lambda *a: torch.utils.checkpoint.checkpoint(crf, *a, use_reentrant=False)):
        x = logits.clone().requires_grad_()
        run(image, x).square().sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize("kind", ["exact", "loss"])
def test_copies(kind: str) -> None:
    options = {"image_range": (0, 2), "mean": (0.1, 0.2, 0.3), "std": 0.5}
    crf = model(kind, **options)
    for p in crf.parameters():
        p.data += 0.1
    image, logits = scene()
    expected = crf(image, logits)
    loaded = model(kind, **options)
    loaded.load_state_dict(crf.state_dict())
    for other in (copy.deepcopy(crf), pickle.loads(pickle.dumps(crf)), loaded):
        assert torch.equal(other(image, logits), expected)


@pytest.mark.parametrize("gradient", ["exact", "implicit"])
def test_ordinary_use_of_infer(device: str, gradient: str) -> None:
    unary = torch.randn(2, 4, 3, device=device)

    def run(u: Any) -> Any:
        return pt.infer(FIELD, u, gradient=gradient, max_iters=100)

    expected = run(unary)
    swapped = unary.movedim(-1, 0).contiguous().movedim(0, -1)
    assert not swapped.is_contiguous()
    for found in (run(swapped), run(unary.requires_grad_())):
        assert torch.allclose(found, expected, atol=1e-6)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert not run(unary).requires_grad
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.allclose(run(unary), expected, atol=1e-6)
    half = unary.detach().half().requires_grad_()
    out = run(half)
    out.square().sum().backward()
    assert (out.dtype, half.grad.dtype) == (torch.float32, torch.float16)
    again = unary.detach().half().requires_grad_()
    torch.utils.checkpoint.checkpoint(run, again, use_reentrant=False).square().sum().backward()
    assert torch.equal(again.grad, half.grad)
    if gradient == "exact":  # tracing takes seconds
        return
    torch._dynamo.reset()
    with warnings.catch_warnings():  # about what is not traced
        warnings.simplefilter("ignore")
        found = torch.compile(run, backend="eager")(unary.detach())
    assert torch.allclose(found, expected, atol=1e-6)
