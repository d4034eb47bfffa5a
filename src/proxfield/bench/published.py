"""What the paper published: Tables 1 to 3 of Baqué, Bagautdinov, Fleuret and Fua (CVPR 2016).

The paper's "KL" is F(q), without log Z, averaged over the instances of a set.
"""

from __future__ import annotations

SUITES = ("DBN", "GRID", "SEG")
BUDGETS = (0.05, 0.3, 1.0)
PAPER_RULES = ("sweep", "full-parallel", "adhoc", "fixed", "adaptive", "momentum", "adam")

_DBN_GRID_SEG = {
    "sweep": "-112.94 -2088.07 -2138.13 -5540.59 -16675.55 -18592.26 78.81 75.50 75.50",
    "full-parallel": "-1952.52 -1951.54 -1942.86 -2564.39 -2777.33 -2439.08 75.66 75.66 75.66",
    "adhoc": "-2047.31 -2047.31 -2047.31 -18345.42 -18348.80 -18349.03 76.10 75.66 75.66",
    "fixed": "-2081.91 -2081.91 -2081.91 -18213.81 -18219.42 -18219.45 77.17 75.61 75.61",
    "adaptive": "-2125.48 -2130.61 -2130.61 -18245.93 -18252.48 -18252.48 77.68 75.64 75.61",
    "momentum": "-2260.98 -2362.14 -2374.51 -18143.48 -19074.45 -19184.37 74.35 73.75 73.75",
    "adam": "-2107.98 -2107.93 -2107.93 -18617.06 -18732.59 -18740.36 72.37 72.32 72.32",
}
PUBLISHED: dict[tuple[str, str, float], float] = {
    (rule, suite, budget): float(text)
    for rule, row in _DBN_GRID_SEG.items()
    for (suite, budget), text in zip(
        [(s, b) for s in SUITES for b in BUDGETS], row.split(), strict=True
    )
}
"""F by rule, suite and budget in seconds."""

FULL_NAMES = {
    "DBN": "deep belief networks",
    "GRID": "grids of spins",
    "SEG": "segmentation",
}
ABOUT = {
    "DBN": "Models of small pictures: 28×28 = 784 binary pixels joined to three layers of hidden "
    "units. Every unit is coupled to every unit of the next layer, with both signs.",
    "GRID": "Grids of 20×20, 40×40 and 80×80 spins. Neighbors attract or repel each other at "
    "random, with couplings up to 15: frustrated, and full of bad local minima.",
    "SEG": "Foreground and background of photographs, over about 230 superpixels. Neighbors "
    "attract each other, so these are the easy ones.",
}
"""The suites for a reader who hasn't seen the paper."""

DIGESTS = {
    "DBN": "21fdcbd03fd92d34",
    "GRID": "911a3db50d495656",
    "SEG": "6f6f02befea63f9a",
}
"""What `suites.suite_digest` gives for the paper's own instances."""


def _pairs(rows: dict[str, str]) -> dict[str, tuple[tuple[float, float], ...]]:
    """F and another score at each budget, by rule."""
    return {
        rule: tuple(zip(map(float, row.split()[::2]), map(float, row.split()[1::2]), strict=True))
        for rule, row in rows.items()
    }


PEOPLE_BUDGETS = (0.5, 1.3, 5.0)
PEOPLE = _pairs(
    {
        "sweep": "1865.43 .630 1795.66 .656 1795.60 .656",
        "full-parallel": "2573.79 .000 2573.79 .000 8500.90 .030",
        "adhoc": "2573.79 .308 1760.02 .781 1753.71 .829",
        "fixed": "1783.63 .626 1754.55 .802 1753.63 .829",
        "momentum": "1931.36 .040 1797.19 .650 1753.83 .826",
        "adam": "2008.52 .021 1813.66 .501 1754.52 .824",
    }
)
"""Table 3: F and MODA after each of `PEOPLE_BUDGETS`, in seconds, on 3000 frames of soccer seen by
6 cameras. The data can't be had, so that only the order of the rules compares."""


INPAINTING_BUDGETS = (0.05, 0.3, 3.0)
INPAINTING = _pairs(
    {
        "sweep": "-6342.56 54.57 -25233.54 58.38 -49519.33 62.50",
        "full-parallel": "-49516.98 60.99 -49519.27 62.00 -49519.33 62.05",
        "adhoc": "-49514.27 61.46 -49520.09 62.15 -49520.20 62.17",
        "fixed": "-49505.59 60.99 -49520.33 62.26 -49521.71 62.35",
        "adaptive": "-49503.43 60.93 -49520.14 62.32 -49522.49 62.60",
        "momentum": "-49513.57 63.69 -49536.67 65.26 -49540.76 65.95",
        "adam": "-49516.02 65.36 -49538.84 67.03 -49544.58 67.12",
    }
)
"""Table 2: F and the accuracy of pixels in the hole, in percent, after each of
`INPAINTING_BUDGETS`, in seconds: means over 100 decision tree fields that inpaint characters."""
INPAINTING_BEST_KNOWN = -49550.68
"""Mean over the same 100 models of the lowest known energy of a labelling."""
