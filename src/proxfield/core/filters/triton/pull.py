# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""The gradient of Σ_ij k_ij a_i·b_j with respect to the points of an `ExactPlan`, in one pass.

With w_ij = k_ij (a_i·b_j + b_i·a_j) it is Σ_j w_ij (f_j − f_i). One pass over the pairs gives both
sums of it: products of the values make a_i·b_j + b_i·a_j, one exponential makes k_ij, and a third
product adds up w_ij times (f_j, 1). Filtering f_j times the values instead would take a pass per
feature.
"""

from __future__ import annotations

from proxfield.core.devices.cuda import constexpr, jit, tl, torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.filters.triton.exact import BIAS, PEAK, ExactPlan
from proxfield.core.filters.triton.kernels import Channels, by_differences, pack, weights_of

PAIRS = 64
"""Maximum number of channels of ``a`` (and of ``b``) in one pass."""
SHARED_MEMORY = 120_000
"""Bytes of shared memory that a program with so many channels takes; with half of them, half."""
TF32_ROUNDING = 0x1000
TF32_MASK = -0x2000


@jit
def pull_tiles(
    encoded, values, moments, blocks, items, partial, first,
    H: constexpr, M: constexpr, SHAPE: constexpr,
):  # fmt: skip
    """partial = Σ_j 2^(BIAS + e_ij) (a_i·b_j + b_i·a_j) m_j; see `filter_tiles`.

    Rows of ``values`` are (a, b), of H channels each; those of ``moments`` are m, by columns.
    """
    BM: constexpr = SHAPE.row
    BN: constexpr = SHAPE.column
    G: constexpr = SHAPE.block
    K: constexpr = SHAPE.slots
    NEAR: constexpr = SHAPE.near
    place = tl.program_id(0)
    item = first + place
    rows = tl.load(items.row + item) * BM + tl.arange(0, BM)
    at = tl.arange(0, BN)
    slot = tl.arange(0, K)
    channel = tl.arange(0, 2 * H)
    other = (channel + H) % (2 * H)  # (b, a)
    moment = tl.arange(0, M)
    mine = tl.load(values + rows[:, None] * (2 * H) + channel[None, :])
    if SHAPE.dot:
        a = tl.load(encoded.left + rows[:, None] * K + slot[None, :])
    total = tl.zeros((BM, M), tl.float32)
    block_list = blocks + tl.load(items.start + item)
    block = tl.load(block_list + at // G)
    for k in range(0, tl.load(items.count + item), BN // G):
        cols = block * G + at % G
        block = tl.load(block_list + k + BN // G + at // G)  # of the next round
        v = tl.load(values + cols[:, None] * (2 * H) + other[None, :])
        m = tl.load(moments + moment[:, None] * encoded.n + cols[None, :])
        if SHAPE.dot:
            b = tl.load(encoded.right + cols[:, None] * K + slot[None, :])
            s = tl.dot(a, b.T)
        else:
            s = by_differences(encoded, rows, cols, SHAPE)
        w = tl.dot(mine, v.T) * weights_of(s, NEAR).to(tl.float32)
        # tensor cores cut the last bits off: rounded here, errors don't all have one sign
        w = ((w.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        total = tl.dot(w, m.T, total)
    to = partial + place.to(tl.int64) * (BM * M)
    tl.store(to + tl.arange(0, BM)[:, None] * M + moment[None, :], total)


@jit
def add_moments(
    partial, item, first_row, order, out, n, M: constexpr, BM: constexpr, ROWS: constexpr
):
    """The sums of a row tile's items, in the caller's order."""
    row = first_row + tl.program_id(0).to(tl.int64)
    inside = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    moment = tl.arange(0, M)
    total = tl.zeros((ROWS, M), tl.float32)
    zero = tl.load(item + first_row)
    for k in range(tl.load(item + row) - zero, tl.load(item + row + 1) - zero):
        total += tl.load(partial + (k * BM + inside)[:, None] * M + moment[None, :])
    point = tl.load(order + row * BM + inside)
    to = out + point[:, None] * M + moment[None, :]
    tl.store(to, total, mask=(point < n)[:, None])


def as_tf32(x: Tensor) -> Tensor:
    """Float32 numbers rounded to the 11 bits that tensor cores use."""
    bits = (x.contiguous().view(torch.int32) + TF32_ROUNDING) & TF32_MASK
    return bits.view(torch.float32)


def moments_of(plan: ExactPlan, features: Tensor) -> Tensor:
    """Features in two parts, and ones, in the plan's order; 0 for points that aren't there.

    # (n, d) -> (a power of two above 2d, places)
    """
    d = plan.d
    width = max(16, 1 << (2 * d).bit_length())
    out = features.new_zeros((width, plan.padded + plan.tiles.block))
    real = plan.order < plan.n
    mine = features[plan.order.clamp(max=plan.n - 1)].T * real  # (d, padded)
    high = as_tf32(mine)
    out[:d, : plan.padded] = high
    out[d : 2 * d, : plan.padded] = as_tf32(mine - high)
    out[2 * d, : plan.padded] = real
    return out


def channels_per_pass(tensor: Tensor) -> int:
    """How many channels of ``a`` fit into the shared memory of the tensor's device."""
    if not tensor.is_cuda:
        return PAIRS
    found = torch.cuda.get_device_properties(tensor.device)
    limit = getattr(found, "shared_memory_per_block_optin", 0)
    return PAIRS if limit >= SHARED_MEMORY else PAIRS // 2


def pull(plan: ExactPlan, features: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """See `Plan.pull`. Errors are about 1e-3 of the sums of absolute values.

    ``features`` are what the plan was made of; the nearer to 0, the smaller the errors.
    """
    n, d = features.shape
    if not n or not a.shape[1]:
        return torch.zeros_like(features), features.new_zeros((n, 1))
    moments = moments_of(plan, features)
    sums = features.new_zeros((n, len(moments)))
    # one scale for all channels, since their products are added
    tiny = torch.finfo(torch.float32).tiny
    most_a, most_b = a.abs().amax().clamp(min=tiny), b.abs().amax().clamp(min=tiny)
    width = channels_per_pass(features)
    for start in range(0, a.shape[1], width):
        some = a[:, start : start + width] / most_a, b[:, start : start + width] / most_b
        sums += _pass(plan, moments, *some)
    # values of size 1 are held times 2^(PEAK - 1), weights times 2^BIAS
    sums = sums * (most_a * most_b * 2.0 ** (-2 * (PEAK - 1) - BIAS))
    seen = sums[:, :d] + sums[:, d : 2 * d]
    total = sums[:, 2 * d : 2 * d + 1]
    return seen - features * total, total


def _pass(plan: ExactPlan, moments: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Scaled sums Σ_j k_ij (a_i·b_j + b_i·a_j) m_j for values of at most size 1.  # (n, moments)"""
    t = plan.tiles
    n, c = a.shape
    half = max(16, 1 << (c - 1).bit_length())
    values = a.new_zeros((n, 2 * half))
    values[:, :c] = a
    values[:, half : half + c] = b
    rows = (plan.padded + t.block) // 64 * 64 + 64
    packed = values.new_empty((rows, 2 * half), dtype=torch.float16)
    given = Channels(values, plan.order, values.new_ones(2 * half), n, 2 * half)
    pack[(rows // 64,)](
        given, packed, plan.factors, packed, plan.padded, PEAK=PEAK, C=2 * half, ROWS=64, G=0
    )
    width = len(moments)
    partial = values.new_empty((max(count for *_, count in plan.batches), t.row, width))
    out = values.new_empty((n, width))
    some = min(32, t.row)
    shape = plan.shape._replace(far="")
    for low, high, first, count in plan.batches:
        pull_tiles[(count,)](
            plan.encoded, packed, moments, plan.blocks, plan.items, partial, first,
            H=half, M=width, SHAPE=shape, num_warps=8, num_stages=2,
        )  # fmt: skip
        add_moments[(high - low, t.row // some)](
            partial, plan.first_item, low, plan.order, out, n, M=width, BM=t.row, ROWS=some
        )
    return out
