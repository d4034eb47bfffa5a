"""Eight numbers at a time: what the inner loops over pixels are made of.

A row of channels is padded to a multiple of `LANES`. LLVM does not turn short loops over two
arrays into vector instructions, because the arrays might overlap; `simd_llvm` says it outright,
with numba's private parts. `simd_loops` has the same functions in plain numba, for a numba whose
private parts have changed; `simd_choice` says which of the two are used.

All take flat arrays and positions, and compiled functions alone may call them. ``count`` says how
many lanes of an unpadded array exist (a group at the end of a row has fewer than eight).
"""

from __future__ import annotations

from importlib import import_module

from proxfield.core.compiled.simd_choice import LANES as LANES
from proxfield.core.compiled.simd_choice import choose

_chosen = import_module(choose().module)


def padded(channels: int) -> int:
    """Channels rounded up to whole groups of lanes.

    Example:
        >>> padded(21)
        24
    """
    return -(-channels // LANES) * LANES


clear = _chosen.clear
"""``clear(to, at)``: to = 0."""
put_scaled = _chosen.put_scaled
"""``put_scaled(to, at, source, where, w)``: to = w · source."""
add_scaled = _chosen.add_scaled
"""``add_scaled(to, at, source, where, w)``: to += w · source."""
blend = _chosen.blend
"""``blend(to, at, source, a, b, c, m, s)``: to = m · source[a] + s · (source[b] + source[c])."""
add_masked = _chosen.add_masked
"""``add_masked(to, at, source, where, count, fill)``: to += source in ``count`` lanes; else fill"""
scale = _chosen.scale
"""``scale(to, at, factor, plus)``: to = to · factor + plus."""
least = _chosen.least
"""``least(array, at, width)``: the smallest number of a row."""
total = _chosen.total
"""``total(array, at, width)``: the sum of a row."""
store_row = _chosen.store_row
"""``store_row(to, where, source, at, n)``: n numbers from a padded row to an unpadded one."""
load_row = _chosen.load_row
"""``load_row(to, at, source, where, n)``: n numbers to a padded row, 0 in its padding."""
replace_row = _chosen.replace_row
"""``replace_row(peak, new, at, old, before, where, n)``: n numbers of ``before`` become those of
``new``; peak[:8] and peak[8:] keep the largest |new − old| and |new − before|, and NaN."""
expected = _chosen.expected
"""``expected(seen, at, q, where, unary, n)``: Σ q · (unary + ½ seen) over a row, where q > 0."""
weighted = _chosen.weighted
"""``weighted(e, row, at, width)``: Σ e · row over a row, where e > 0."""
gather_row = _chosen.gather_row
"""``gather_row(to, at, source, width, row, weight, where, corners, begin, factor)``: add to the row
to[at:] the rows begin + row[where + k] of ``source``, times weight[where + k] · factor."""
scatter_row = _chosen.scatter_row
"""``scatter_row(to, source, at, width, row, weight, where, corners, begin, factor)``: add the row
source[at:] to the rows begin + row[where + k] of ``to``, times weight[where + k] · factor."""
sum_rows = _chosen.sum_rows
"""``sum_rows(to, source, at, stride, above, keep)``: eight rows of ``source`` from at on, summed
down (after above[:stride], which becomes the last of these sums) and along the rows. They are
turned: to holds eight numbers of each column together. ``keep`` is 1, or 0 to sum along rows alone.
``source`` is set to 0. ``stride`` is a multiple of eight."""
integrate_rows = _chosen.integrate_rows
"""``integrate_rows(to, at, stride, source, keep)``: eight turned rows of ``source``, summed along
the rows and down, become the eight rows after the one at ``to[at:]``, the sum before them."""
sum_listed = _chosen.sum_listed
"""``sum_listed(to, at, source, width, row, where, count, factor)``: the row to[at:] becomes the sum
of the rows row[where + k] of ``source``, times factor; ``row`` is unsigned."""
