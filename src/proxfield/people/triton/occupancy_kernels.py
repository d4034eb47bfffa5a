# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Triton kernels of occupancy maps: images of all cameras of several frames at once.

An image of log N is made from the corners of the rectangles (differences, summed down the columns
and along the rows), and sums over rectangles are differences of an integral image. Every sum has
a fixed order: corners are listed by the pixel where they lie, and nothing is added atomically.

Images are cut into bands of rows, one program each; the integral image of a band begins anew, and
what the bands above add to its columns is kept apart. Integral images are float64: what is small
is found from their differences, and in float32 the last digits of q would never come to rest. All
other images have the type of the program.

The images of a frame lie one after another in one buffer, row by row. The second index of a grid
is the frame, so that what is the same for all frames is read from the cache.
"""

from __future__ import annotations

from typing import NamedTuple

from proxfield.core.devices.cuda import constexpr, jit, tl
from proxfield.core.devices.tensors import Tensor


class MaskRows(NamedTuple):
    """Rows of all cameras: where each begins in an image and in the masks, and its columns."""

    base: Tensor
    mask_base: Tensor
    columns: Tensor


class PixelCorners(NamedTuple):
    """Corners by the pixel where they lie.

    An entry is 2 · location, + 1 where it is subtracted.
    """

    start: Tensor
    count: Tensor
    entry: Tensor
    place: Tensor


class Images(NamedTuple):
    """Images of some frames, and how many pixels of them each frame has."""

    diff: Tensor
    cover: Tensor
    sums: Tensor
    size: int
    weights: Tensor  # or 1 − 2B
    weights_size: int


class Bands(NamedTuple):
    """Bands of rows of a group of cameras."""

    table: Tensor  # see `Group`  # (6, many)
    many: int
    owner: Tensor  # the camera of each band
    heads: Tensor  # what `sum_bands` leaves  # (frames, head_size)
    feet: Tensor  # the last row of each band's integral image  # (frames, head_size)
    head_size: int


class BandShape(NamedTuple):
    """What kernels over bands are compiled for."""

    rows: int
    width: int
    chunks: int
    pieces: bool  # are rows longer than ``width``?


class MaskFactors(NamedTuple):
    """Ψ of each camera of each frame, and the factor of its gradient."""

    ratios: Tensor  # (frames, cameras, 2)
    cameras: int
    first: int
    """The group's first camera."""


class Locations(NamedTuple):
    """log p_i of all locations, and where their gradients go."""

    n: int
    logs: Tensor  # (frames, n)
    direct: Tensor  # log p_i below which pixels are visited one by one
    out: Tensor  # as q of `take_logs`
    entries: int


class BoxList(NamedTuple):
    """Rectangles of all cameras, and the cameras of a group that have them."""

    corners: Tensor  # (cameras, 4, n)
    which: Tensor
    many: Tensor  # their number, in memory
    base: Tensor
    head: Tensor
    stride: Tensor


class RunList(NamedTuple):
    """Runs of a group's cameras, and the cameras that have them."""

    at: Tensor  # the first pixel of each run in the frame
    column: Tensor
    length: Tensor
    start: Tensor  # (cameras of runs, n + 1)
    which: Tensor
    many: Tensor


@jit
def weigh_masks(
    masks, pixels, shares, image, image_size, rows, numbers, totals, lines,
    RATIO: constexpr, WIDTH: constexpr,
):  # fmt: skip
    """What a frame's masks make of its images: w_x, or 1 − 2B where RATIO.

    numbers: the value of a mask's 1; w and the constant of the energy, each for B = 0 and by how
    much it rises to B = 1. totals: Σ of the constant, or of B, over each row.  # (frames, lines)
    """
    line, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    width = tl.load(rows.columns + line)
    shares += tl.load(rows.base + line)
    image += frame * image_size + tl.load(rows.base + line)
    masks += frame * pixels + tl.load(rows.mask_base + line)
    one = tl.load(numbers)
    total = tl.zeros((), tl.float64)
    for x in range(0, width, WIDTH):
        column = x + tl.arange(0, WIDTH)
        inside = column < width
        b = tl.load(masks + column, mask=inside, other=0).to(tl.float64) / one
        if RATIO:
            w = 1.0 - 2.0 * b
            total += tl.sum(tl.where(inside, b, 0.0), 0)
        else:
            share = tl.load(shares + column, mask=inside, other=0.0)
            w = share * (tl.load(numbers + 1) + tl.load(numbers + 2) * b)
            total += tl.sum(share * (tl.load(numbers + 3) + tl.load(numbers + 4) * b), 0)
        tl.store(image + column, w.to(image.dtype.element_ty), mask=inside)
    tl.store(totals + frame * lines + line, total)


@jit
def take_logs(q, entries, logs, flags, n, smallest, direct, BLOCK: constexpr):
    """log p_i of each location; a flag for blocks in which one is below ``direct``.

    q: p_0 of the first frame, each of which has so many ``entries``; logs: (frames, n);
    flags: (frames, blocks) int32.
    """
    block, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    p = tl.load(q + frame * entries + 2 * at, mask=inside, other=1.0).to(tl.float64)
    lowest = tl.load(smallest)
    log = tl.log(tl.maximum(p, lowest, propagate_nan=tl.PropagateNan.ALL))
    tl.store(logs + frame * n + at, log.to(logs.dtype.element_ty), mask=inside)
    small = inside & (log < tl.load(direct))
    tl.store(flags + frame * tl.num_programs(0) + block, tl.max(small.to(tl.int32), 0))


@jit
def sum_many(logs, corners, diff, first, end, CELLS: constexpr, WIDE: constexpr):
    """`sum_corners` for pixels with many corners: some lanes for each."""
    cell = first + tl.arange(0, CELLS)
    inside = cell < end
    low = tl.load(corners.start + cell, mask=inside, other=0)[:, None]
    many = tl.load(corners.count + cell, mask=inside, other=0)
    total = tl.zeros((CELLS, WIDE), diff.dtype.element_ty)
    for k in range(0, tl.max(many, 0), WIDE):
        at = k + tl.arange(0, WIDE)[None, :]
        here = at < many[:, None]
        e = tl.load(corners.entry + low + at, mask=here, other=0)
        log = tl.load(logs + (e >> 1), mask=here, other=0.0)
        total += tl.where((e & 1) != 0, -log, log)
    to = tl.load(corners.place + cell, mask=inside, other=0)
    tl.store(diff + to, tl.sum(total, 1), mask=inside)


@jit
def sum_few(logs, corners, diff, first, end, BLOCK: constexpr):
    """`sum_corners` for pixels with few corners: a lane each."""
    cell = first + tl.arange(0, BLOCK)
    inside = cell < end
    low = tl.load(corners.start + cell, mask=inside, other=0)
    many = tl.load(corners.count + cell, mask=inside, other=0)
    total = tl.zeros((BLOCK,), diff.dtype.element_ty)
    for k in range(tl.max(many, 0)):
        here = k < many
        e = tl.load(corners.entry + low + k, mask=here, other=0)
        log = tl.load(logs + (e >> 1), mask=here, other=0.0)
        total += tl.where((e & 1) != 0, -log, log)
    to = tl.load(corners.place + cell, mask=inside, other=0)
    tl.store(diff + to, total, mask=inside)


@jit
def sum_corners(
    logs, n, corners, diff, size, cells, crowded, crowded_blocks,
    CELLS: constexpr, WIDE: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """Write the difference at each pixel where corners lie, Σ ± log p_i, to images.

    All other pixels of ``diff`` stay 0. The first pixels are the ``crowded`` ones.
    """
    block, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    logs += frame * n
    diff += frame * size
    if block < crowded_blocks:
        sum_many(logs, corners, diff, block * CELLS, crowded, CELLS, WIDE)
    else:
        first = crowded + (block - crowded_blocks) * BLOCK
        sum_few(logs, corners, diff, first, cells, BLOCK)


@jit
def band_of(bands, band):
    """A row of the table of bands (see `Group`); rows of images begin at multiples of 16."""
    first = tl.multiple_of(tl.load(bands.table + band), 16)
    head = tl.multiple_of(tl.load(bands.table + bands.many + band), 16)
    rows, width = (
        tl.load(bands.table + 2 * bands.many + band),
        tl.load(bands.table + 3 * bands.many + band),
    )
    stride = tl.multiple_of(tl.load(bands.table + 4 * bands.many + band), 16)
    return first, head, rows, width, stride, tl.load(bands.table + 5 * bands.many + band)


@jit
def sum_bands(images, bands, SHAPE: constexpr):
    """Sums down the columns of each band's differences, for rectangles.

    Ends of rows are read and written too: they hold 0, and without
    them several columns are read at once.
    """
    ROWS: constexpr = SHAPE.rows
    WIDTH: constexpr = SHAPE.width
    band, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first, head, rows, width, stride, number = band_of(bands, band)
    diff = images.diff + frame * images.size + first
    heads = bands.heads + frame * bands.head_size + head
    if number < 0:  # runs have no sums down columns
        rows = 0
    for x in range(0, width, WIDTH):
        column = x + tl.arange(0, WIDTH)
        total = tl.zeros((WIDTH,), diff.dtype.element_ty)
        for y in range(0, rows, ROWS):
            row = y + tl.arange(0, ROWS)[:, None]
            inside = (row < rows) & (column < stride)[None, :]
            d = tl.load(diff + row * stride + column[None, :], mask=inside, other=0.0)
            total += tl.sum(d, 0)
        tl.store(heads + column, total, mask=column < stride)


@jit
def sum_heads(heads, column, before, stride, inside, WIDTH: constexpr):
    """What the ``before`` bands above add to a band's columns."""
    total = tl.zeros((WIDTH,), heads.dtype.element_ty)
    for k in range(1, before + 1):
        total += tl.load(heads + column - k * stride, mask=inside, other=0.0)
    return total


@jit
def carried(sums, turn, CHUNKS: constexpr):
    """One row of ``sums``, as a column."""
    mine = tl.arange(0, CHUNKS)[:, None] == turn
    return tl.sum(tl.where(mine, sums, 0.0), 0)[:, None]


@jit
def carry(sums, values, turn, CHUNKS: constexpr):
    """Add the sums of each row of ``values`` to one row of ``sums``."""
    mine = tl.arange(0, CHUNKS)[:, None] == turn
    return sums + tl.where(mine, tl.sum(values, 1)[None, :], 0.0)


@jit
def measure_bands(images, bands, totals, SHAPE: constexpr):
    """Σ A and Σ A (1 − 2B) of each band, where A = 1 − N; weights are 1 − 2B.

    totals: (frames, many, 2)
    """
    ROWS: constexpr = SHAPE.rows
    WIDTH: constexpr = SHAPE.width
    CHUNKS: constexpr = SHAPE.chunks
    band, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first, head, rows, width, stride, number = band_of(bands, band)
    diff = images.diff + frame * images.size + first
    image = images.weights + frame * images.weights_size + first
    heads = bands.heads + frame * bands.head_size + head
    before = tl.zeros((CHUNKS, ROWS), diff.dtype.element_ty)
    all_of_it = tl.zeros((WIDTH,), tl.float64)
    wrong = tl.zeros((WIDTH,), tl.float64)
    for x in range(0, width, WIDTH):
        column = x + tl.arange(0, WIDTH)
        above = sum_heads(heads, column, number, stride, column < stride, WIDTH)
        for y in range(0, rows, ROWS):
            row = y + tl.arange(0, ROWS)[:, None]
            at = row * stride + column[None, :]
            there = (row < rows) & (column < stride)[None, :]
            d = tl.load(diff + at, mask=there, other=0.0)
            b = tl.load(image + at, mask=there, other=0.0)
            slope = tl.where(number < 0, d, tl.cumsum(d, 0) + above[None, :])
            above += tl.sum(d, 0)
            log = tl.cumsum(slope, 1)
            if SHAPE.pieces:
                log += carried(before, y // ROWS, CHUNKS)
                before = carry(before, slope, y // ROWS, CHUNKS)
            a = tl.where(there & (column < width)[None, :], 1.0 - tl.exp(log), 0.0)
            all_of_it += tl.sum(a, 0).to(tl.float64)
            wrong += tl.sum(a * b, 0).to(tl.float64)
    to = totals + (frame * bands.many + band) * 2
    tl.store(to, tl.sum(all_of_it, 0))
    tl.store(to + 1, tl.sum(wrong, 0))


@jit
def find_ratios(
    totals, bands, first, count, ground, mask_sums, numbers, factors, energies, WIDTH: constexpr
):  # fmt: skip
    """Ψ of each camera and the factor of its gradient, from what `measure_bands` left.

    numbers: σ² and the floor; energies: (frames, cameras).
    """
    which, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    low, many = tl.load(first + which), tl.load(count + which)
    totals += (frame * bands + low) * 2
    all_of_it = tl.zeros((WIDTH,), tl.float64)
    wrong = tl.zeros((WIDTH,), tl.float64)
    for k in range(0, many, WIDTH):
        at = k + tl.arange(0, WIDTH)
        all_of_it += tl.load(totals + 2 * at, mask=at < many, other=0.0)
        wrong += tl.load(totals + 2 * at + 1, mask=at < many, other=0.0)
    variance = tl.load(numbers)
    floor = tl.load(numbers + 1) * tl.load(ground + which).to(tl.float64)
    to = frame * factors.cameras + factors.first + which
    den = floor + tl.sum(all_of_it, 0)
    psi = (floor + tl.load(mask_sums + to) + tl.sum(wrong, 0)) / den
    tl.store(factors.ratios + 2 * to, psi)
    tl.store(factors.ratios + 2 * to + 1, -psi / (variance * den))
    tl.store(energies + to, psi * psi / (2.0 * variance))


@jit
def weigh(image, factors, RATIO: constexpr):
    """What is summed over silhouettes, without N: weights, or those of the ratio."""
    out = image
    if RATIO:
        # in float64: the factors' digits matter for both types
        exact = tl.load(factors + 1) * (image.to(tl.float64) - tl.load(factors))
        out = exact.to(image.dtype)
    return out


@jit
def weigh_bands(
    images, bands, factors, flags, counts, totals, all_bands,
    RATIO: constexpr, SHAPE: constexpr, FLAGS: constexpr,
):  # fmt: skip
    """Differences to log N to weights · N to the integral image of each band, in one pass.

    log N itself is kept, in ``cover``, if a location of the frame is so probably occupied that its
    pixels will be summed one by one. totals: of each band  # (frames, all_bands). counts: number of
    flags of a frame; in memory, since Triton may fail to compile loops for a number that it knows
    to be 1.
    """
    ROWS: constexpr = SHAPE.rows
    WIDTH: constexpr = SHAPE.width
    CHUNKS: constexpr = SHAPE.chunks
    n_flags = tl.load(counts)
    band, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first, head, rows, width, stride, number = band_of(bands, band)
    camera = frame * factors.cameras + factors.first + tl.load(bands.owner + band)
    mine = factors.ratios + 2 * camera
    diff = images.diff + frame * images.size + first
    cover = images.cover + frame * images.size + first
    sums = images.sums + frame * images.size + first
    image = images.weights + frame * images.weights_size + first
    heads = bands.heads + frame * bands.head_size + head
    feet = bands.feet + frame * bands.head_size + head
    found = tl.zeros((FLAGS,), tl.int32)
    for k in range(0, n_flags, FLAGS):
        at = k + tl.arange(0, FLAGS)
        found = tl.maximum(found, tl.load(flags + frame * n_flags + at, mask=at < n_flags, other=0))
    keep = tl.max(found, 0) != 0
    before = tl.zeros((CHUNKS, ROWS), diff.dtype.element_ty)
    done = tl.zeros((CHUNKS, ROWS), tl.float64)
    total = tl.zeros((WIDTH,), tl.float64)
    for x in range(0, width, WIDTH):
        column = x + tl.arange(0, WIDTH)
        above = sum_heads(heads, column, number, stride, column < stride, WIDTH)
        upper = tl.zeros((WIDTH,), tl.float64)
        for y in range(0, rows, ROWS):
            row = y + tl.arange(0, ROWS)[:, None]
            at = row * stride + column[None, :]
            there = (row < rows) & (column < stride)[None, :]
            d = tl.load(diff + at, mask=there, other=0.0)
            w = weigh(tl.load(image + at, mask=there, other=0.0), mine, RATIO)
            slope = tl.where(number < 0, d, tl.cumsum(d, 0) + above[None, :])
            above += tl.sum(d, 0)
            log = tl.cumsum(slope, 1)
            if SHAPE.pieces:
                log += carried(before, y // ROWS, CHUNKS)
                before = carry(before, slope, y // ROWS, CHUNKS)
            weighted = tl.where(there & (column < width)[None, :], w * tl.exp(log), 0.0)
            weighted = weighted.to(tl.float64)
            total += tl.sum(weighted, 0)
            along = tl.cumsum(weighted, 1)
            if SHAPE.pieces:
                along += carried(done, y // ROWS, CHUNKS)
                done = carry(done, weighted, y // ROWS, CHUNKS)
            # the rows below the image hold 0 along the row, or what is carried: they aren't there
            along = tl.where(row < rows, along, 0.0)
            out = tl.where(number < 0, along, tl.cumsum(along, 0) + upper[None, :])
            upper += tl.sum(along, 0)
            tl.store(sums + at, out, mask=there)
            tl.store(cover + at, log, mask=there & keep)
        tl.store(feet + column, upper, mask=column < stride)
    tl.store(totals + frame * all_bands + band, tl.sum(total, 0))


@jit
def add_feet(feet, head_size, base, columns, stride, count, COLUMNS: constexpr):
    """What the bands above add to the integral image of each band, in place of its last row.

    One program has a strip of columns of one camera, in all of its bands.
    """
    strip, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = column < tl.load(columns + strip)
    feet += frame * head_size + tl.load(base + strip)
    length, many = tl.load(stride + strip), tl.load(count + strip)
    above = tl.zeros((COLUMNS,), tl.float64)
    for k in range(many):
        to = feet + k * length + column
        mine = tl.load(to, mask=inside, other=0.0)
        tl.store(to, above, mask=inside)
        above += mine


@jit
def corner(sums, feet, first, head, row, column, stride, inside, BAND: constexpr):
    """Integral image at the upper left corner of a pixel; 0 along the border."""
    real = inside & (row > 0) & (column > 0)
    at, right = row - 1, column - 1
    mine = tl.load(sums + first + at * stride + right, mask=real, other=0.0)
    return mine + tl.load(feet + head + (at // BAND) * stride + right, mask=real, other=0.0)


@jit
def collect_boxes(
    images, bands, boxes, locations, factors,
    RATIO: constexpr, BAND: constexpr, BLOCK: constexpr, PIXELS: constexpr,
):  # fmt: skip
    """Add Σ_{x ∈ R_i} w_x N_x/p_i of some cameras, from integral images, to the gradient.

    For small p_i pixel by pixel.
    """
    block, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n = locations.n
    sums = images.sums + frame * images.size
    cover = images.cover + frame * images.size
    feet = bands.feet + frame * bands.head_size
    image = images.weights + frame * images.weights_size
    lane = tl.arange(0, BLOCK)
    at = block * BLOCK + lane
    inside = at < n
    log = tl.load(locations.logs + frame * n + at, mask=inside, other=0.0)
    inverse = tl.exp(-log.to(tl.float64))
    small = inside & (log < tl.load(locations.direct))
    all_of_it = tl.zeros((BLOCK,), tl.float64)
    for k in range(tl.load(boxes.many)):
        mine = tl.load(boxes.which + k).to(tl.int64)
        first, length = tl.load(boxes.base + mine), tl.load(boxes.stride + mine)
        high = tl.load(boxes.head + mine)
        box = boxes.corners + (factors.first + mine) * 4 * n + at
        left = tl.load(box, mask=inside, other=0)
        top = tl.load(box + n, mask=inside, other=0)
        right = tl.load(box + 2 * n, mask=inside, other=0)
        bottom = tl.load(box + 3 * n, mask=inside, other=0)
        seen = right > left
        far = corner(sums, feet, first, high, bottom, right, length, seen, BAND)
        far -= corner(sums, feet, first, high, top, right, length, seen, BAND)
        near = corner(sums, feet, first, high, bottom, left, length, seen, BAND)
        near -= corner(sums, feet, first, high, top, left, length, seen, BAND)
        found = (far - near) * inverse
        waiting = (seen & small).to(tl.int32)
        while tl.max(waiting, 0) > 0:
            here = lane == tl.argmax(waiting, 0)
            x, y = tl.sum(tl.where(here, left, 0), 0), tl.sum(tl.where(here, top, 0), 0)
            width = tl.sum(tl.where(here, right, 0), 0) - x
            area = width * (tl.sum(tl.where(here, bottom, 0), 0) - y)
            own = tl.sum(tl.where(here, log, 0.0), 0)
            total = tl.zeros((PIXELS,), cover.dtype.element_ty)
            for p in range(0, area, PIXELS):
                pixel = p + tl.arange(0, PIXELS)
                real = pixel < area
                to = first + (y + pixel // width) * length + x + pixel % width
                w = weigh(
                    tl.load(image + to, mask=real, other=0.0),
                    factors.ratios + 2 * (frame * factors.cameras + factors.first + mine), RATIO,
                )  # fmt: skip
                total += tl.where(
                    real, w * tl.exp(tl.load(cover + to, mask=real, other=0.0) - own), 0.0
                )
            found = tl.where(here, tl.sum(total.to(tl.float64), 0), found)
            waiting = tl.where(here, 0, waiting)
        all_of_it += found
    out = locations.out + frame * locations.entries + 2 * at
    before = tl.load(out, mask=inside, other=0.0)
    tl.store(out, before + all_of_it.to(before.dtype), mask=inside)


@jit
def collect_runs(
    images, runs, locations, factors, RATIO: constexpr, BLOCK: constexpr, PIXELS: constexpr
):
    """`collect_boxes` for silhouettes of runs; sums are along the rows alone."""
    block, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n = locations.n
    sums = images.sums + frame * images.size
    cover = images.cover + frame * images.size
    image = images.weights + frame * images.weights_size
    lane = tl.arange(0, BLOCK)
    at = block * BLOCK + lane
    inside = at < n
    log = tl.load(locations.logs + frame * n + at, mask=inside, other=0.0)
    inverse = tl.exp(-log.to(tl.float64))
    small = inside & (log < tl.load(locations.direct))
    all_of_it = tl.zeros((BLOCK,), tl.float64)
    for turn in range(tl.load(runs.many)):
        mine = tl.load(runs.which + turn).to(tl.int64)
        begin = runs.start + turn * (n + 1) + at
        low = tl.load(begin, mask=inside, other=0)
        several = tl.load(begin + 1, mask=inside, other=0) - low
        found = tl.zeros((BLOCK,), tl.float64)
        for k in range(tl.max(several, 0)):
            here = k < several
            to = tl.load(runs.at + low + k, mask=here, other=0)
            length = tl.load(runs.length + low + k, mask=here, other=1)
            column = tl.load(runs.column + low + k, mask=here, other=0)
            found += tl.load(sums + to + length - 1, mask=here, other=0.0)
            found -= tl.load(sums + to - 1, mask=here & (column > 0), other=0.0)
        found = found * inverse
        waiting = ((several > 0) & small).to(tl.int32)
        while tl.max(waiting, 0) > 0:
            here = lane == tl.argmax(waiting, 0)
            run, each = tl.sum(tl.where(here, low, 0), 0), tl.sum(tl.where(here, several, 0), 0)
            own = tl.sum(tl.where(here, log, 0.0), 0)
            total = tl.zeros((PIXELS,), cover.dtype.element_ty)
            for r in range(run, run + each):
                to, length = tl.load(runs.at + r), tl.load(runs.length + r)
                for k in range(0, length, PIXELS):
                    pixel = k + tl.arange(0, PIXELS)
                    real = pixel < length
                    camera = frame * factors.cameras + factors.first + mine
                    weight = tl.load(image + to + pixel, mask=real, other=0.0)
                    w = weigh(weight, factors.ratios + 2 * camera, RATIO)
                    over = tl.load(cover + to + pixel, mask=real, other=0.0)
                    total += tl.where(real, w * tl.exp(over - own), 0.0)
            found = tl.where(here, tl.sum(total.to(tl.float64), 0), found)
            waiting = tl.where(here, 0, waiting)
        all_of_it += found
    out = locations.out + frame * locations.entries + 2 * at
    before = tl.load(out, mask=inside, other=0.0)
    tl.store(out, before + all_of_it.to(before.dtype), mask=inside)
