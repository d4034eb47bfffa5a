"""The kernels under Triton's interpreter, on the CPU: a program of its own, since the interpreter
has to be chosen before Triton is imported. Prints one JSON object: a dictionary for each case."""

from __future__ import annotations

import json
import os
from typing import Any

CASES: dict[str, tuple[int, int, int, float]] = {
    "five features": (301, 5, 21, 1.0),
    "one feature": (130, 1, 2, 3.0),
    "two features, wide": (257, 2, 1, 20.0),
    "eight features, 40 channels": (199, 8, 40, 0.5),
    "twelve features": (70, 12, 3, 0.4),
    "70 channels": (65, 2, 70, 1.0),
    "one point": (1, 3, 2, 1.0),
    "far from each other": (150, 5, 21, 60.0),
    "further than products reach": (150, 2, 3, 5000.0),
    "furthest": (90, 3, 2, 1e7),
    "identical": (75, 5, 3, 0.0),
}
"""Points, features, channels, standard deviation of the features."""


def points_of(name: str) -> tuple[Any, Any]:
    """Features and values of a case."""
    import torch

    n, d, c, spread = CASES[name]
    random = torch.Generator().manual_seed(n)
    features = spread * torch.randn(n, d, generator=random, dtype=torch.float64)
    if spread > 1e3:  # pairs that see each other, too
        features[1::2] = features[: len(features[1::2]) * 2 : 2] + 0.3
    return features, torch.rand(n, c, generator=random)


def mend_interpreter() -> None:
    """Triton's interpreter turns arrays of one number into integers as numpy no longer allows."""
    from triton.runtime import interpreter

    before = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any = None) -> None:
        if scope is None:
            before(tensor)
            tensor.__index__ = lambda self: int(self.handle.data.item())
        else:
            before(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch


def poison() -> None:
    """Fresh tensors hold NaN, so that unwritten entries show."""
    import torch

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        fresh = getattr(owner, name)

        def filled(*args: Any, fresh: Any = fresh, **kwargs: Any) -> Any:
            out = fresh(*args, **kwargs)
            return out.fill_(float("nan") if out.is_floating_point() else 77)

        setattr(owner, name, filled)


def error(out: Any, expected: Any, scale: Any = None) -> float:
    """Error in the Euclidean norm, relative to what is expected or to another scale."""
    return float((out.double() - expected).norm() / (expected if scale is None else scale).norm())


def missed(plan: Any) -> dict[str, float]:
    """Weights that no list holds: the largest, and the largest share of a point's weights.

    And likewise of the far ones, and how many pairs are in no list although all are computed.
    """
    import torch

    from proxfield.core.filters.triton.encode import ORIGIN
    from proxfield.core.filters.triton.exact import BIAS

    t, columns = plan.tiles, plan.padded // plan.tiles.block
    held = torch.zeros((plan.padded // t.row, columns + 1), dtype=torch.bool)
    near = torch.zeros_like(held)
    for row, start, far, count in zip(*(x.tolist() for x in plan.items), strict=True):
        held[row, plan.blocks[start : start + count].long()] = True
        near[row, plan.blocks[start + far : start + count].long()] = True
    size = plan.padded
    exponent = plan.encoded.left[:size].double() @ plan.encoded.right[:size].double().T
    if plan.scaled:
        exponent = (exponent - ORIGIN) / 1024
    weight = 2.0 ** (exponent - BIAS)
    every = weight.sum(1)

    def outside(of: Any) -> tuple[float, float]:
        covered = of[:, :-1].repeat_interleave(t.row, 0).repeat_interleave(t.block, 1)
        rest = weight * ~covered
        return float(rest.max()), float((rest.sum(1) / every).max())

    most, share = outside(held)
    far_most, far_share = outside(near)
    return {"most": most, "share": share, "far most": far_most, "far share": far_share}


def dense() -> dict[str, Any]:
    """Points so close to each other that centers of blocks stand for far ones, and some are left
    out: the errors, also of single weights, and with every weight computed by itself."""
    import torch

    from proxfield.core.filters.torch.plans import reference_filter
    from proxfield.core.filters.triton import exact
    from proxfield.core.filters.triton.exact import ExactPlan, Tiles

    random = torch.Generator().manual_seed(0)
    y, x = torch.meshgrid(torch.arange(12.0) / 16, torch.arange(72.0) / 9, indexing="ij")
    features = torch.stack([y, x], -1).reshape(-1, 2)
    features = (features + 0.01 * torch.randn(features.shape, generator=random)).double()
    values = torch.rand(len(features), 2, generator=random)
    values = torch.cat([values, torch.eye(len(features))[:, :1]], 1)  # and one point's weights
    expected = reference_filter(features, values)
    tiles = Tiles(row=32, column=16, block=8, box=16, rounds=4)
    plan = ExactPlan(features, tiles=tiles)
    out = plan.apply(values)
    shares = exact.DROPPED_SHARE, exact.FAR_SHARE
    exact.DROPPED_SHARE, exact.FAR_SHARE = 0.0, 0.0
    plain = ExactPlan(features, tiles=tiles)
    exact.DROPPED_SHARE, exact.FAR_SHARE = shares
    off = (out.double() - expected).abs()
    pair = (values[:, 0].double() @ out[:, 1].double(), values[:, 1].double() @ out[:, 0].double())
    return {
        "far": plan.far_pairs, "pairs": plan.pairs, "all": plain.pairs,
        "missed": missed(plan), "missed plain": missed(plain),
        "error": error(out[:, :2], expected[:, :2]),
        "worst": float((off[:, :2] / expected[:, :2]).max()),
        "weight": float(off[:, 2].max()), "least": float(out.min()),
        "asymmetry": abs(float(pair[0] / pair[1]) - 1.0),
        "repeats": bool((plan.apply(values) == out).all()),
    }  # fmt: skip


def orders() -> dict[str, Any]:
    """What the k-d order of some points looks like."""
    import torch

    from proxfield.core.filters.triton import order

    random = torch.Generator().manual_seed(0)
    out: dict[str, Any] = {"every": []}
    for n in (1, 8, 31, 32, 33, 300):
        found = order.kd_order(torch.randn(n, 3, generator=random), 8, 32)
        whole = found.sort().values.tolist() == list(range(-(-n // 32) * 32))
        out["every"].append(whole)
    points = torch.randn(1024, 2, generator=random)
    found = order.kd_order(points, 8, 32)
    ordered, scattered = order.boxes(points[found], 8), order.boxes(points, 8)
    out["compact"] = float((ordered[1] - ordered[0]).mean())
    out["scattered"] = float((scattered[1] - scattered[0]).mean())
    # the first split puts the smaller half of the widest dimension first
    wide = points * torch.tensor([1.0, 9.0])
    halves = wide[order.kd_order(wide, 8, 32)][:, 1].view(2, 512)
    out["halves"] = float(halves[0].max() - halves[1].min())
    # so does the last one
    pairs = points[found].view(-1, 2, 8, 2)
    both = pairs.reshape(-1, 16, 2)
    widest = (both.amax(1) - both.amin(1)).argmax(1)
    chosen = pairs.gather(3, widest[:, None, None, None].expand(-1, 2, 8, 1))[..., 0]
    out["leaves"] = bool((chosen[:, 0].amax(1) <= chosen[:, 1].amin(1)).all())
    same = torch.zeros(100, 2)
    out["same"] = order.kd_order(same, 8, 32).sort().values.tolist() == list(range(128))
    return out


def encoded() -> list[float]:
    """How far products of encoded rows are from exponents, for several dimensions and widths."""
    import torch

    from proxfield.core.filters.triton import encode

    out = []
    for d, spread in ((1, 1.0), (2, 60.0), (5, 1.0), (5, 8.0), (5, 100.0), (8, 3.0), (20, 0.5)):
        random = torch.Generator().manual_seed(d)
        points = spread * torch.randn(60, d, generator=random, dtype=torch.float64)
        points[30:] = points[:30] + 0.3 * torch.randn(30, d, generator=random)
        points = points.clamp(-encode.MAX_COORDINATE, encode.MAX_COORDINATE)
        order = torch.randperm(64, generator=random)
        there = points[order.clamp(max=59)]
        extents = points.abs().amax(0).tolist()
        left, right = encode.encode_in_order(points, order, 8, extents, 12)
        assert left.shape == right.shape == (72, encode.slots(d, max(extents))[0])
        exact = 12 - 0.5 * torch.cdist(there, there) ** 2
        off = (left[:64].double() @ right[:64].double().T - exact).abs()
        zero = 12 - 0.5 * (there**2).sum(1)
        beyond = (left[:64].double() @ right[64].double() - zero).abs()
        out.append(float(torch.cat([off[exact > -10], beyond[zero > -10]]).max()))
    return out


def main() -> None:
    """Run all cases."""
    import torch

    torch.set_num_threads(1)
    mend_interpreter()
    from proxfield.core.filters.torch.plans import reference_filter
    from proxfield.core.filters.triton import exact, order
    from proxfield.core.filters.triton.exact import ExactPlan, Tiles

    poison()
    small = Tiles(row=32, column=16, block=8, box=16, rounds=2)
    found: dict[str, dict[str, Any]] = {}
    for name in CASES:
        features, values = points_of(name)
        plan = ExactPlan(features, tiles=small)
        out = plan.apply(values)
        mixed = torch.randn(values.shape, generator=torch.Generator().manual_seed(1))
        found[name] = {
            "error": error(out, reference_filter(features, values)),
            "signed": error(
                plan.apply(mixed),
                reference_filter(features, mixed),
                reference_filter(features, mixed.abs()),
            ),
            "repeats": bool((plan.apply(values) == out).all()),
            "products": plan.dot,
            "missed": missed(plan) if plan.dot else {"share": 0.0},
        }
    features, values = points_of("five features")
    expected = reference_filter(features, values)
    found["defaults"] = {"error": error(ExactPlan(features).apply(values), expected)}
    exact.ITEMS, order.WIDTH, order.STEPS = 3, 4, 2  # several batches and sections
    batched = ExactPlan(features, tiles=small)
    found["batches"] = {
        "count": len(batched.batches),
        "same": bool(
            (batched.apply(values) == ExactPlan(features, tiles=small).apply(values)).all()
        ),
        "error": error(batched.apply(values), expected),
    }
    scales = torch.tensor([1e-30, 1.0, 1e30])
    tall = batched.apply(values[:, :3] * scales)
    found["scales"] = {
        "errors": [error(tall[:, k], expected[:, k] * float(scales[k])) for k in range(3)]
    }
    level = torch.full((len(features), 3), 1 / 21)  # float16 is 3e-4 off
    found["level"] = {"error": error(batched.apply(level), reference_filter(features, level))}
    ones = torch.ones((len(features), 1))
    mass = reference_filter(features, ones)
    found["ones"] = {"error": error(batched.apply(ones), mass), "mass": float(mass.mean())}
    found["zeros"] = {"most": float(batched.apply(torch.zeros_like(values)).abs().max())}
    wide, _ = points_of("two features, wide")
    loose, tight = (ExactPlan(wide, tolerance, small) for tolerance in (1e-2, 1e-6))
    found["loose"] = {"pairs": loose.pairs, "all": tight.pairs, "missed": missed(loose)["most"]}
    found["dense"] = dense()
    found["order"] = orders()
    found["encoded"] = encoded()
    none = ExactPlan(features[:0])
    found["nothing"] = {
        "shapes": [list(none.apply(values[:0]).shape), list(batched.apply(values[:, :0]).shape)]
    }
    print(json.dumps(found))


if __name__ == "__main__":
    assert os.environ.get("TRITON_INTERPRET") == "1", "set TRITON_INTERPRET=1"
    main()
