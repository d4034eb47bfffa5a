"""What the torch layer does on a GPU, under Triton's interpreter on the CPU: a program of its own,
since the interpreter has to be chosen before Triton is imported. Prints one JSON object."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))


def error(found: Any, expected: Any) -> float:
    """Relative, in the Euclidean norm."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def main() -> None:
    """Compare the paths of the GPU with the plain ones."""
    import numpy as np
    import torch
    from gpu_cases import mend_interpreter

    torch.set_num_threads(1)
    mend_interpreter()
    import proxfield as pf
    import proxfield.torch as pt
    from proxfield.core.filters.torch import plans
    from proxfield.torch import run

    torch.manual_seed(0)
    out: dict[str, Any] = {}
    for own, images in ((1, 2), (2, 2)):
        f, a, b = torch.randn(own, 70, 2), torch.randn(images, 70, 3), torch.rand(images, 70, 3)
        f[:, :35] += 20.0  # far from the mean
        fast, plain = plans.TritonPlan(f), plans.PlainPlan(f.double())
        out[f"filter {own}"] = error(fast.apply(b), plain.apply(b.double()))
        expected = plain.pull(a.double(), b.double())
        out[f"pull {own}"] = [error(x, y) for x, y in zip(fast.pull(a, b), expected, strict=True)]
    f, a, b = torch.randn(1, 70, 5), 1e-9 * torch.randn(1, 70, 70), 1e4 * torch.rand(1, 70, 70)
    fast, plain = plans.TritonPlan(f), plans.PlainPlan(f.double())  # more than one pass
    for x, y in zip(fast.pull(a, b), plain.pull(a.double(), b.double()), strict=True):
        out.setdefault("pull in passes", []).append(error(x, y))
    f = 400 * torch.randn(1, 70, 2)  # further than products reach
    f[:, 1::2] = f[:, ::2] + 0.5
    fast, plain = plans.TritonPlan(f), plans.PlainPlan(f.double())
    for x, y in zip(fast.pull(a, b), plain.pull(a.double(), b.double()), strict=True):
        out.setdefault("pull far away", []).append(error(x, y))
    image, logits = torch.rand(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    for kind, iterations in (("exact", 6), ("implicit", 60)):
        layer = pt.DenseCRF(
            3, bilateral_color=0.3, spatial_weight=0.7, bilateral_weight=0.8, gradient=kind,
            max_iters=iterations,
        )  # fmt: skip
        found = []
        for on_triton in (lambda f: True, lambda f: False):
            plans.on_triton = on_triton
            pt.clear_plans()
            layer.zero_grad()
            x = logits.clone().requires_grad_()
            q = layer(image, x)
            q.square().sum().backward()
            found.append([q.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())])
        out[f"layer {kind}"] = [error(a, b) for a, b in zip(*found, strict=True)]
    rng = np.random.default_rng(0)
    edges = [[i, i + 1] for i in range(5)]
    fields = {
        "potts": pf.Field(6, n_labels=3).add(pf.Potts(edges, rng.normal(size=5))),
        "mixed": pf.Field([2, 3, 2, 3, 2, 2])
        .add(pf.Potts(edges, 0.5))
        .add(pf.Pairwise([[0, 4]], [[0.0, 1.0], [2.0, 0.0]])),
    }
    from proxfield.core.engines.triton.program import compile_cuda

    for name, field in fields.items():
        weighted = sum(len(t.edges) for t in field.terms if isinstance(t, pf.Potts | pf.Ising))
        found = []
        for kernels in (lambda energies: compile_cuda, lambda energies: None):
            run.cuda_kernels = kernels
            torch.manual_seed(1)
            u = torch.randn(2, field.layout.size, dtype=torch.float64, requires_grad=True)
            w = torch.randn(weighted, dtype=torch.float64, requires_grad=True)
            q = pt.infer(field, u, tol=1e-8, max_iters=25, gradient="implicit")
            r = pt.infer(field, u, weights=w, tol=1e-8, max_iters=25, gradient="implicit")
            (q.square().sum() + r.square().sum()).backward()
            found.append([q.detach(), r.detach(), u.grad, w.grad])
        out[f"infer {name}"] = [error(a, b) for a, b in zip(*found, strict=True)]
    print(json.dumps(out))


if __name__ == "__main__":
    assert os.environ.get("TRITON_INTERPRET") == "1", "set TRITON_INTERPRET=1"
    main()
