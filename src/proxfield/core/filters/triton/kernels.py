# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Triton kernels of the exact filter.

Points are in k-d order. A *row tile* is ``BM`` points; an *item* is a row tile and a piece of its
list of *blocks*, each of ``G`` points. One program sums over one item, ``BN`` points at a time.
Every sum has a fixed order, so two runs give the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

from proxfield.core.devices.cuda import constexpr, jit, tl
from proxfield.core.devices.tensors import Tensor


class FilterShape(NamedTuple):
    """What kernels over tiles are compiled for."""

    dimensions: int
    slots: int  # values per point in encoded rows
    first: int  # those of the first bracket
    bias: int
    dot: bool  # are exponents products of encoded rows?
    near: str  # assembly that makes weights of near blocks; see `weights_of`
    far: str  # the same for far ones; empty if there are none
    scale: float
    row: int
    column: int
    block: int


class EncodedPoints(NamedTuple):
    """Points by coordinates, and as rows whose products are exponents; see `encode`."""

    points: Tensor
    left: Tensor
    right: Tensor
    n: int


class ItemLists(NamedTuple):
    """A row tile and a piece of its list of blocks, for each item; far ones come first."""

    row: Tensor
    start: Tensor
    far: Tensor
    count: Tensor


class Channels(NamedTuple):
    """Values of points, the order of points, and bounds on each channel's values."""

    rows: Tensor  # (n, c)
    order: Tensor
    most: Tensor  # (c,)
    n: int
    c: int


def exp2_assembly(polynomials: int) -> str:
    """Instructions that make eight numbers 2^x as float16, some of them by a polynomial.

    The units for exponentials are the bottleneck, and the others have time to spare. So a few of
    every eight are a polynomial of degree 3 (relative error 7.5e-5) for the fraction, and an
    addition to the exponent's bits for the whole part. Inputs below −100 count as −100: 0 in
    float16.

    Args:
        polynomials: How many of eight.
    """
    apart = [8 * k // polynomials for k in range(polynomials)] if polynomials else []
    lines = ["{", ".reg .f32 y<8>, t, n, r, p;", ".reg .b32 m, o;"]
    for k in range(8):
        if k not in apart:
            lines.append(f"ex2.approx.ftz.f32 y{k}, ${4 + k};")
            continue
        lines += [
            f"max.f32 t, ${4 + k}, 0fC2C80000;",
            "add.f32 n, t, 0f4B400000;",  # 1.5 · 2^23: the last bits are now the whole part
            "sub.f32 r, n, 0f4B400000;",
            "sub.f32 r, t, r;",
            "fma.rn.f32 p, r, 0f3D61FBB0, 0f3E786F0D;",
            "fma.rn.f32 p, p, r, 0f3F31798D;",
            "fma.rn.f32 p, p, r, 0f3F7FFB49;",
            "mov.b32 m, n;",
            "shl.b32 m, m, 23;",
            "mov.b32 o, p;",
            "add.s32 m, m, o;",
            f"mov.b32 y{k}, m;",
        ]
    lines += [f"cvt.rn.f16x2.f32 ${k}, y{2 * k + 1}, y{2 * k};" for k in range(4)]
    return "\n".join([*lines, "}"])


def bits_assembly(exponentials: int, cubic: bool) -> str:
    """Instructions that make eight numbers 2^s as float16 from 1024 s + `encode.ORIGIN`.

    In a float32 of that size, bytes 1 and 2 are the bits of the float16 number 2^s, but for the
    fraction f of s: 1 + f in place of 2^f, up to 6 % too much. ``cubic`` replaces it by a
    polynomial, in float16 and two at a time (error at most 7e-4, on average 0; exact for f = 0).
    So many of the four pairs are left to the units for ``exponentials``, which would be idle.
    Inputs below 2^15 count as that: 0.
    """
    apart = [4 * k // exponentials for k in range(exponentials)] if exponentials else []
    lines = ["{", ".reg .f32 x0, x1;", ".reg .b32 h, m, g, a, b, c0, c1, c2, c3;"]
    for k in range(4):
        x, y = f"${4 + 2 * k}", f"${5 + 2 * k}"
        if k in apart:
            lines += [  # x / 1024 − (ORIGIN / 1024)
                f"fma.rn.f32 x0, {x}, 0f3A800000, 0fC23C0080;",
                f"fma.rn.f32 x1, {y}, 0f3A800000, 0fC23C0080;",
                "ex2.approx.ftz.f32 x0, x0;",
                "ex2.approx.ftz.f32 x1, x1;",
                f"cvt.rn.f16x2.f32 ${k}, x1, x0;",
            ]
            continue
        lines += [
            f"max.f32 x0, {x}, 0f47000000;",
            f"max.f32 x1, {y}, 0f47000000;",
            "mov.b32 a, x0;",
            "mov.b32 b, x1;",
            "prmt.b32 h, a, b, 0x6521;",
        ]
        if not cubic:
            lines.append(f"mov.b32 ${k}, h;")
            continue
        lines += [
            "mov.b32 c3, 0x2CF82CF8;",
            "mov.b32 c2, 0x9EEF9EEF;",
            "mov.b32 c1, 0x37A137A1;",
            "mov.b32 c0, 0x373C373C;",
            "lop3.b32 m, h, 0x03FF03FF, 0x3C003C00, 0xEA;",  # 1 + f
            "fma.rn.f16x2 g, m, c3, c2;",
            "fma.rn.f16x2 g, g, m, c1;",
            "fma.rn.f16x2 g, g, m, c0;",
            "sub.s32 h, h, m;",
            f"add.s32 ${k}, h, g;",
        ]
    return "\n".join([*lines, "}"])


@jit
def bits_of_two(v):
    """v = `encode.ORIGIN` + 1024 s as the float16 with these bits: 2^s, linear between powers."""
    bits = tl.maximum(v, 32768.0).to(tl.int32, bitcast=True) >> 8
    return bits & 0x7FFF


@jit
def weights_of(s, ASSEMBLY: constexpr):
    """2^s as float16, by assembly; "", "near" and "far" say the same where none can run.

    "near" and "far" take 1024 s + `encode.ORIGIN`; see `bits_assembly`.
    """
    if ASSEMBLY == "":
        return tl.exp2(s).to(tl.float16)
    elif ASSEMBLY == "far":
        return bits_of_two(s).to(tl.int16).to(tl.float16, bitcast=True)
    elif ASSEMBLY == "near":
        bits = bits_of_two(s)
        m = ((bits & 0x3FF) | 0x3C00).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        p = (m * 0.07763671875 - 0.006771087646484375).to(tl.float16).to(tl.float32)
        p = (p * m + 0.476806640625).to(tl.float16).to(tl.float32)
        p = (p * m + 0.4521484375).to(tl.float16)
        whole = (bits & 0x7C00) - 0x3C00
        return (
            (whole + p.to(tl.int16, bitcast=True).to(tl.int32))
            .to(tl.int16)
            .to(tl.float16, bitcast=True)
        )
    else:
        return tl.inline_asm_elementwise(
            ASSEMBLY, "=r,=r,=r,=r,r,r,r,r,r,r,r,r", [s], dtype=tl.float16, is_pure=True, pack=8
        )


@jit
def by_differences(encoded, rows, cols, SHAPE: constexpr):
    """BIAS − ‖x − y‖² from coordinates in two float32 parts, for points far from 0."""
    D: constexpr = SHAPE.dimensions
    BM: constexpr = SHAPE.row
    BN: constexpr = SHAPE.column
    points, n = encoded.points, encoded.n
    s = tl.full((BM, BN), SHAPE.bias, tl.float32)
    for k in tl.static_range(D):
        x, y = tl.load(points + k * n + rows), tl.load(points + k * n + cols)
        gap = x[:, None] - y[None, :]
        x, y = tl.load(points + (D + k) * n + rows), tl.load(points + (D + k) * n + cols)
        gap += x[:, None] - y[None, :]
        s -= gap * gap
    return s


@jit
def filter_tiles(
    encoded, values, centers, means, blocks, items, partial, first, C: constexpr, SHAPE: constexpr
):
    """partial = Σ_j 2^(BIAS + e_ij) v_j over the blocks of each item, e_ij ≤ 0.

    The far blocks come first, if there are any: each as one point at its center with the mean
    value of its points, exponents from the first bracket alone (see `encode`), 2^f as 1 + f, and
    a scale, which makes that right on average.
    """
    BM: constexpr = SHAPE.row
    BN: constexpr = SHAPE.column
    G: constexpr = SHAPE.block
    K: constexpr = SHAPE.slots
    NEAR: constexpr = SHAPE.near
    FAR: constexpr = SHAPE.far
    place = tl.program_id(0)
    item = first + place
    rows = tl.load(items.row + item) * BM + tl.arange(0, BM)
    at = tl.arange(0, BN)
    slot = tl.arange(0, K)
    channel = tl.arange(0, C)
    total = tl.zeros((BM, C), tl.float32)
    mine = blocks + tl.load(items.start + item)
    far = tl.load(items.far + item)
    if FAR != "":
        few = tl.arange(0, SHAPE.first)
        a = tl.load(encoded.left + rows[:, None] * K + few[None, :])
        block = tl.load(mine + at)
        for k in range(0, far, BN):
            cols = block
            # the next round's: the copies into shared memory would wait for their addresses
            block = tl.load(mine + k + BN + at)
            v = tl.load(means + cols[:, None] * C + channel[None, :])
            b = tl.load(centers + cols[:, None] * K + few[None, :])
            total = tl.dot(weights_of(tl.dot(a, b.T), FAR), v, total)
        total *= SHAPE.scale
    if SHAPE.dot:
        a = tl.load(encoded.left + rows[:, None] * K + slot[None, :])
    block = tl.load(mine + far + at // G)
    for k in range(far, tl.load(items.count + item), BN // G):
        cols = block * G + at % G
        block = tl.load(mine + k + BN // G + at // G)
        v = tl.load(values + cols[:, None] * C + channel[None, :])
        if SHAPE.dot:
            b = tl.load(encoded.right + cols[:, None] * K + slot[None, :])
            s = tl.dot(a, b.T)
        else:
            s = by_differences(encoded, rows, cols, SHAPE)
        total = tl.dot(weights_of(s, NEAR), v, total)
    to = partial + place.to(tl.int64) * (BM * C)
    tl.store(to + tl.arange(0, BM)[:, None] * C + channel[None, :], total)


@jit
def power_of_two(exponent):
    """2^exponent."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@jit
def exponent_of(most):
    """The e with most < 2^e, but not below −100."""
    return tl.maximum(((most.to(tl.int32, bitcast=True) >> 23) & 255) - 126, -100)


@jit
def pack(
    given, out, factors, means, padded, PEAK: constexpr, C: constexpr, ROWS: constexpr, G: constexpr
):  # fmt: skip
    """Values in the order of the points as float16, the largest of a channel below 2^PEAK.

    Rounded up or down at random (but always alike), by how near they are to both: errors of
    equal values then cancel in sums instead of adding up. Float16 numbers stay what they are.
    With G, also the mean of every G points, times a factor.
    """
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, C)
    point = tl.load(given.order + at, mask=at < padded, other=given.n)
    real = (point < given.n)[:, None] & (channel < given.c)[None, :]
    e = exponent_of(tl.load(given.most + channel, mask=channel < given.c, other=0.0))
    v = tl.load(given.rows + point[:, None] * given.c + channel[None, :], mask=real, other=0.0)
    v = v * power_of_two(PEAK - e)[None, :]
    draw = (tl.randint(0, at[:, None] * C + channel[None, :]) & 0x1FFF).to(tl.int32)
    v = ((v.to(tl.int32, bitcast=True) + draw) & -0x2000).to(tl.float32, bitcast=True)
    tl.store(out + at.to(tl.int64)[:, None] * C + channel[None, :], v.to(tl.float16))
    if G:
        block = tl.program_id(0) * (ROWS // G) + tl.arange(0, ROWS // G)
        mean = tl.sum(tl.reshape(v, (ROWS // G, G, C)), 1) * (1.0 / G)
        mean *= tl.load(factors + block, mask=block < padded // G, other=0.0)[:, None]
        tl.store(means + block[:, None] * C + channel[None, :], mean.to(tl.float16))


@jit
def add_up(
    partial, item, first_row, given, packed, out,
    BIAS: constexpr, PEAK: constexpr, C: constexpr, BM: constexpr, ROWS: constexpr,
):  # fmt: skip
    """The sums of a row tile's items, in the caller's order and scale.

    A point's weight for itself is 1, so what its value lost in rounding is simply added.
    """
    row = first_row + tl.program_id(0).to(tl.int64)
    inside = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, C)
    total = tl.zeros((ROWS, C), tl.float32)
    zero = tl.load(item + first_row)
    for k in range(tl.load(item + row) - zero, tl.load(item + row + 1) - zero):
        total += tl.load(partial + (k * BM + inside)[:, None] * C + channel[None, :])
    at = row * BM + inside
    point = tl.load(given.order + at)
    real = (point < given.n)[:, None] & (channel < given.c)[None, :]
    v = tl.load(given.rows + point[:, None] * given.c + channel[None, :], mask=real, other=0.0)
    rounded = tl.load(packed + at[:, None] * C + channel[None, :]).to(tl.float32)
    e = exponent_of(tl.load(given.most + channel, mask=channel < given.c, other=0.0))
    v -= rounded * power_of_two(e - PEAK)[None, :]
    v += total * power_of_two(e - PEAK - BIAS)[None, :]
    tl.store(out + point[:, None] * given.c + channel[None, :], v, mask=real)


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
