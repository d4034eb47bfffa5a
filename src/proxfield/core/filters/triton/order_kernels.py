# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Triton kernels that put points in order and encode them; see `order` and `encode`."""

from __future__ import annotations

from proxfield.core.devices.cuda import constexpr, jit, tl


@jit
def tile_boxes(points, order, low, high, n, tiles, D: constexpr, TILE: constexpr):
    """Smallest and largest coordinates of each tile.  # 2 × (D, tiles)"""
    tile = tl.program_id(0)
    at = tl.load(order + tile.to(tl.int64) * TILE + tl.arange(0, TILE))
    at = tl.minimum(at, n - 1)
    for k in tl.static_range(D):
        x = tl.load(points + at * D + k)
        tl.store(low + k * tiles + tile, tl.min(x, 0))
        tl.store(high + k * tiles + tile, tl.max(x, 0))


@jit
def split_keys(
    points, order, low, high, table, keys, n, tiles,
    BITS: constexpr, D: constexpr, TILE: constexpr, WIDTH: constexpr,
):  # fmt: skip
    """A point's segment, and its place along the segment's widest dimension, as one integer."""
    tile = tl.program_id(0)
    segment = tl.load(table + tile)
    begin = tl.load(table + tiles + tile)
    end = tl.load(table + 2 * tiles + tile)
    widest = 0
    best = -1.0
    origin = 0.0
    for k in tl.static_range(D):
        least = tl.full((WIDTH,), float("inf"), tl.float32)
        most = tl.full((WIDTH,), float("-inf"), tl.float32)
        for first in range(begin, end, WIDTH):
            at = first + tl.arange(0, WIDTH)
            inside = at < end
            a = tl.load(low + k * tiles + at, mask=inside, other=float("inf"))
            b = tl.load(high + k * tiles + at, mask=inside, other=float("-inf"))
            least = tl.minimum(least, a)
            most = tl.maximum(most, b)
        bottom = tl.min(least, 0)
        width = tl.max(most, 0) - bottom
        widest = tl.where(width > best, k, widest)
        origin = tl.where(width > best, bottom, origin)
        best = tl.maximum(width, best)
    place = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    point = tl.minimum(tl.load(order + place), n - 1)
    x = tl.load(points + point * D + widest) - origin
    share = x / tl.maximum(best, 1e-30)  # 0 to 1
    whole = tl.minimum((share * (1 << BITS)).to(tl.int32), (1 << BITS) - 1)
    tl.store(keys + place, (segment << BITS) | whole)


@jit
def sort_inside(points, order, out, n, D: constexpr, TILE: constexpr, LEVELS: constexpr):
    """Split each tile in two, ``LEVELS`` times, along the widest dimension of each part.

    Points stay where they are and learn their slots: each counts those of its part before it.
    """
    first = tl.program_id(0).to(tl.int64) * TILE
    number = tl.load(order + first + tl.arange(0, TILE))
    at = tl.minimum(number, n - 1)
    slot = tl.arange(0, TILE)
    for level in range(LEVELS):  # unrolled, this and the next would take long to compile
        size = TILE >> level
        part = slot // size
        same = part[:, None] == part[None, :]
        best = tl.full((TILE,), -1.0, tl.float32)
        x = tl.zeros((TILE,), tl.float32)
        for k in range(D):
            y = tl.load(points + at * D + k)
            high = tl.max(tl.where(same, y[None, :], float("-inf")), 1)
            width = high - tl.min(tl.where(same, y[None, :], float("inf")), 1)
            x = tl.where(width > best, y, x)
            best = tl.maximum(width, best)
        earlier = (x[None, :] == x[:, None]) & (slot[None, :] < slot[:, None])
        before = same & ((x[None, :] < x[:, None]) | earlier)
        slot = part * size + tl.sum(before.to(tl.int32), 1)
    tl.store(out + first + slot, number)


@jit
def survey(
    mine, my_spread, my_radius, theirs, spread, radius, boxes, groups, lowest, step, widest,
    shares,
    D: constexpr, BOXES: constexpr, WIDTH: constexpr, LEVELS: constexpr,
):  # fmt: skip
    """Which share of a row tile's weights lies beyond each level of distance, estimated.

    From centers of its ``BOXES`` boxes and of groups of points: level k holds what is at
    ½ distance² > lowest + k step. A weight's mean over points around two centers is at least that
    of the mean square distance, which gives the total; by how much it may be larger than that of
    the centers depends on the spreads, which gives the rest. Points of wide groups are bounded
    by their radius and the level. Where a box is wide, shares are infinite.
    """
    row = tl.program_id(0)
    box = row * BOXES + tl.arange(0, BOXES)
    level = tl.arange(0, LEVELS)
    mass = tl.zeros((BOXES,), tl.float32)
    beyond = tl.zeros((BOXES, LEVELS), tl.float32)
    own = tl.load(my_spread + box)
    my_reach = tl.load(my_radius + box)[:, None]
    for start in range(0, groups, WIDTH):
        group = start + tl.arange(0, WIDTH)
        there = group < groups
        square = tl.zeros((BOXES, WIDTH), tl.float32)
        for k in tl.static_range(D):
            x = tl.load(mine + k * boxes + box)[:, None]
            y = tl.load(theirs + k * groups + group, mask=there, other=0.0)[None, :]
            square += (x - y) * (x - y)
        width = tl.load(spread + group, mask=there, other=0.0)[None, :]
        both = own[:, None] + width
        mass += tl.sum(tl.where(there[None, :], tl.exp2(-0.5 * (square + both)), 0.0), 1)
        wide = width > widest
        reach = tl.load(radius + group, mask=there, other=0.0)[None, :]
        gap = tl.maximum(tl.sqrt(square) - reach - my_reach, 0.0)
        narrow = 0.5 * square * tl.maximum(1.0 - both * (1.4 / D), 0.0)
        weight = tl.exp2(-tl.where(wide, 0.5 * gap * gap, narrow))
        weight = tl.where(there[None, :], weight, 0.0)
        for k in tl.static_range(LEVELS):
            bound = lowest + k * step + tl.zeros((1, 1), tl.float32)
            outside = tl.where(0.5 * square > bound, weight, 0.0)
            bound = tl.exp2(-bound)
            part = tl.sum(tl.where(wide, tl.minimum(weight, bound), outside), 1)
            beyond += tl.where(level == k, 1.0, 0.0)[None, :] * part[:, None]
    share = beyond / tl.maximum(mass, 1e-30)[:, None]
    share = tl.where((own <= widest)[:, None], share, float("inf"))
    tl.store(shares + row * LEVELS + level, tl.max(share, 0))


@jit
def near_blocks(
    row_low, row_high, low, high, spread, boxes, columns, limits, widest, classes, at, blocks,
    D: constexpr, BOXES: constexpr, WIDTH: constexpr, STEPS: constexpr, FILL: constexpr,
):  # fmt: skip
    """How many blocks of a section are near a row tile, and how many far but within reach.

    By the nearest of the tile's ``BOXES`` boxes, and ``limits``: square distances up to which
    blocks are near, and up to which they are within reach. Wide blocks within reach are near.
    ``classes`` takes 1 for near and 2 for far ones, ``at`` both counts. With FILL the former is
    known, and the latter says where to write the blocks' numbers.
    """
    row = tl.program_id(0)
    mine = row * BOXES + tl.arange(0, BOXES)
    cell = at + 2 * (row.to(tl.int64) * tl.num_programs(1) + tl.program_id(1))
    first = tl.program_id(1) * (WIDTH * STEPS)
    own = classes + row.to(tl.int64) * columns
    near_limit = tl.load(limits + 2 * row)
    far_limit = tl.load(limits + 2 * row + 1)
    near_to = tl.zeros((), tl.int64)
    far_to = tl.zeros((), tl.int64)
    if FILL:
        near_to = tl.load(cell)
        far_to = tl.load(cell + 1)
    for start in range(first, tl.minimum(first + WIDTH * STEPS, columns), WIDTH):
        block = start + tl.arange(0, WIDTH)
        inside = block < columns
        if FILL:
            distance_class = tl.load(own + block, mask=inside, other=0).to(tl.int32)
        else:
            square = tl.zeros((BOXES, WIDTH), tl.float32)
            for k in tl.static_range(D):
                a = tl.load(row_low + k * boxes + mine)[:, None]
                b = tl.load(row_high + k * boxes + mine)[:, None]
                c = tl.load(low + k * columns + block, mask=inside, other=0.0)[None, :]
                d = tl.load(high + k * columns + block, mask=inside, other=0.0)[None, :]
                gap = tl.maximum(tl.maximum(c - b, a - d), 0.0)
                square += gap * gap
            nearest = tl.min(square, 0)
            wide = tl.load(spread + block, mask=inside, other=0.0) > widest
            distance_class = tl.where(wide | (nearest <= near_limit), 1, 2)
            distance_class = tl.where(inside & (nearest <= far_limit), distance_class, 0)
            tl.store(own + block, distance_class.to(tl.int8), mask=inside)
        near = (distance_class == 1).to(tl.int32)
        far = (distance_class == 2).to(tl.int32)
        if FILL:
            tl.store(blocks + near_to + tl.cumsum(near, 0) - 1, block, mask=near != 0)
            tl.store(blocks + far_to + tl.cumsum(far, 0) - 1, block, mask=far != 0)
        near_to += tl.sum(near, 0)
        far_to += tl.sum(far, 0)
    if not FILL:
        tl.store(cell, near_to)
        tl.store(cell + 1, far_to)


@jit
def put_float16(left, right, row, slot: constexpr, a, b, K: constexpr, inside):
    """One number of each point's rows."""
    tl.store(left + row * K + slot, a.to(tl.float16), mask=inside)
    tl.store(right + row * K + slot, b.to(tl.float16), mask=inside)


@jit
def as_float16(value):
    """Rounded to float16."""
    return value.to(tl.float32).to(tl.float16).to(tl.float64)


@jit
def encode_points(
    points, order, column, left, right, n, padded, rows, step, unit,
    BIAS: constexpr, HALF: constexpr, ROOT: constexpr, D: constexpr, K: constexpr,
    FIRST: constexpr, CROSS: constexpr, ROWS: constexpr,
):  # fmt: skip
    """`encode.encode` of points in order, and zeros for rows from ``padded`` on.

    ``step`` and ``unit`` are powers of two, so nothing is lost where they are float32. Products
    are ROOT² times as large, and HALF is added to what the second bracket gives.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    real = row < padded
    at = tl.minimum(tl.load(order + row, mask=real, other=0), n - 1)
    half = tl.zeros((ROWS,), tl.float64)
    rest = tl.zeros((ROWS,), tl.float64)
    for k in tl.static_range(D):
        x = tl.load(points + at * D + tl.load(column + k), mask=real, other=0.0)
        high = tl.floor(x / step + 0.5) * step
        low = as_float16(x - high)
        half -= 0.5 * high * high
        rest -= high * low + 0.5 * low * low
        high *= ROOT
        low *= ROOT
        put_float16(left, right, row, k, high, high, K, inside)
        put_float16(left, right, row, FIRST + k, high, low, K, inside)
        put_float16(left, right, row, FIRST + D + k, low, high, K, inside)
        if k < CROSS:
            put_float16(left, right, row, FIRST + 2 * D + 4 + k, low, low, K, inside)
    one = tl.full((ROWS,), 1.0, tl.float64)
    a = half + BIAS
    for k in tl.static_range(3):
        scale = one * unit if k == 0 else one
        p, q = as_float16(a / scale), as_float16(half / scale)
        put_float16(left, right, row, D + k, p, scale * (ROOT * ROOT), K, inside)
        put_float16(left, right, row, D + 3 + k, scale * (ROOT * ROOT), q, K, inside)
        a -= p * scale
        half -= q * scale
    b = rest + HALF
    one *= ROOT * ROOT
    for k in tl.static_range(2):
        p, q = as_float16(b), as_float16(rest)
        put_float16(left, right, row, FIRST + 2 * D + k, p, one, K, inside)
        put_float16(left, right, row, FIRST + 2 * D + 2 + k, one, q, K, inside)
        b -= p
        rest -= q
