# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Triton kernels of occupancy maps: images of all cameras of several frames at once.

An image of log N is made from the corners of the rectangles (differences, summed down the columns
and along the rows), and sums over rectangles are differences of an integral image. Every sum has
a fixed order: corners are listed by the pixel where they lie, and nothing is added atomically.
Differences, scans and integral images are float64.

The images of a frame lie one after another in one buffer, row by row. The second index of a grid
is the frame, so that what is the same for all frames is read from the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxfield.devices.cuda import jit, tl

if TYPE_CHECKING:
    from proxfield.devices.tensors import constexpr
else:
    constexpr = str if tl is None else tl.constexpr


@jit
def weigh_masks(
    masks, pixels, shares, image, image_size, base, mask_base, columns, numbers, totals, lines,
    line_offset, RATIO: constexpr, WIDTH: constexpr,
):  # fmt: skip
    """What a frame's masks make of its images: w_x, or 1 − 2B where RATIO.

    numbers: the value of a mask's 1; w and the constant of the energy, each for B = 0 and by how
    much it rises to B = 1. totals: Σ of the constant, or of B, over each row.  # (frames, lines)
    """
    line, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    width = tl.load(columns + line)
    shares += tl.load(base + line)
    image += frame * image_size + tl.load(base + line)
    masks += frame * pixels + tl.load(mask_base + line)
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
    tl.store(totals + frame * lines + line_offset + line, total)


@jit
def take_logs(q, entries, logs, flags, n, smallest, direct, BLOCK: constexpr):
    """log p_i of each location; a flag for blocks in which one is below ``direct``.

    q: p_0 of the first frame, each of which has so many ``entries``; logs: (frames, n) float64;
    flags: (frames, blocks) int32.
    """
    block, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    p = tl.load(q + frame * entries + 2 * at, mask=inside, other=1.0).to(tl.float64)
    lowest = tl.load(smallest)
    log = tl.log(tl.maximum(p, lowest, propagate_nan=tl.PropagateNan.ALL))
    tl.store(logs + frame * n + at, log, mask=inside)
    small = inside & (log < tl.load(direct))
    tl.store(flags + frame * tl.num_programs(0) + block, tl.max(small.to(tl.int32), 0))


@jit
def sum_many(logs, start, count, entry, values, first, end, CELLS: constexpr, WIDE: constexpr):
    """`sum_corners` for pixels with many corners: several lanes share the list of each."""
    cell = first + tl.arange(0, CELLS)
    inside = cell < end
    low = tl.load(start + cell, mask=inside, other=0)[:, None]
    many = tl.load(count + cell, mask=inside, other=0)
    total = tl.zeros((CELLS, WIDE), tl.float64)
    for k in range(0, tl.max(many, 0), WIDE):
        at = k + tl.arange(0, WIDE)[None, :]
        here = at < many[:, None]
        e = tl.load(entry + low + at, mask=here, other=0)
        log = tl.load(logs + (e >> 1), mask=here, other=0.0)
        total += tl.where((e & 1) != 0, -log, log)
    tl.store(values + cell, tl.sum(total, 1), mask=inside)


@jit
def sum_few(logs, start, count, entry, values, first, end, BLOCK: constexpr):
    """`sum_corners` for pixels with few corners: a lane each."""
    cell = first + tl.arange(0, BLOCK)
    inside = cell < end
    low = tl.load(start + cell, mask=inside, other=0)
    many = tl.load(count + cell, mask=inside, other=0)
    total = tl.zeros((BLOCK,), tl.float64)
    for k in range(tl.max(many, 0)):
        here = k < many
        e = tl.load(entry + low + k, mask=here, other=0)
        log = tl.load(logs + (e >> 1), mask=here, other=0.0)
        total += tl.where((e & 1) != 0, -log, log)
    tl.store(values + cell, total, mask=inside)


@jit
def sum_corners(
    logs, n, start, count, entry, values, cells, crowded, crowded_blocks,
    CELLS: constexpr, WIDE: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """The difference at each pixel where corners lie: Σ ± log p_i.

    An entry is 2 · location, + 1 where it is subtracted. The first pixels are the ``crowded`` ones.
    """
    block, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    logs += frame * n
    values += frame * cells
    if block < crowded_blocks:
        sum_many(logs, start, count, entry, values, block * CELLS, crowded, CELLS, WIDE)
    else:
        first = crowded + (block - crowded_blocks) * BLOCK
        sum_few(logs, start, count, entry, values, first, cells, BLOCK)


@jit
def spread_columns(
    values, cells, slot, image, size, base, columns, rows, stride, vertical,
    ROWS: constexpr, COLUMNS: constexpr,
):  # fmt: skip
    """Write the differences to images, summed down the columns where rectangles are `vertical`.

    One program has a strip of columns of one camera. slot: where each pixel's difference is among
    ``values``, −1 if it has none.
    """
    strip, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first, height = tl.load(base + strip), tl.load(rows + strip)
    length, down = tl.load(stride + strip), tl.load(vertical + strip)
    column = tl.arange(0, COLUMNS)[None, :]
    there = column < tl.load(columns + strip)
    values += frame * cells
    image += frame * size
    above = tl.zeros((COLUMNS,), tl.float64)
    for y in range(0, height, ROWS):
        row = y + tl.arange(0, ROWS)[:, None]
        at = first + row * length + column
        inside = there & (row < height)
        place = tl.load(slot + at, mask=inside, other=-1)
        d = tl.load(values + place, mask=place >= 0, other=0.0)
        if down != 0:
            total = tl.cumsum(d, 0) + above[None, :]
            above += tl.sum(d, 0)
            tl.store(image + at, total, mask=inside)
        else:
            tl.store(image + at, d, mask=inside)


@jit
def sum_columns(
    image, size, base, columns, rows, stride, ROWS: constexpr, COLUMNS: constexpr
):  # fmt: skip
    """Sum images down the columns, in place; one program has a strip of columns."""
    strip, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first, height = tl.load(base + strip), tl.load(rows + strip)
    length = tl.load(stride + strip)
    column = tl.arange(0, COLUMNS)[None, :]
    there = column < tl.load(columns + strip)
    image += frame * size
    above = tl.zeros((COLUMNS,), tl.float64)
    for y in range(0, height, ROWS):
        row = y + tl.arange(0, ROWS)[:, None]
        at = first + row * length + column
        inside = there & (row < height)
        d = tl.load(image + at, mask=inside, other=0.0)
        total = tl.cumsum(d, 0) + above[None, :]
        above += tl.sum(d, 0)
        tl.store(image + at, total, mask=inside)


@jit
def finish_cover(cover, size, base, columns, WIDTH: constexpr):
    """Sum images along the rows, in place: after this they say how much covers each pixel."""
    line, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    width = tl.load(columns + line)
    cover += frame * size + tl.load(base + line)
    before = tl.zeros((), tl.float64)
    for x in range(0, width, WIDTH):
        column = x + tl.arange(0, WIDTH)
        inside = column < width
        d = tl.load(cover + column, mask=inside, other=0.0)
        tl.store(cover + column, tl.cumsum(d, 0) + before, mask=inside)
        before += tl.sum(d, 0)


@jit
def measure_rows(cover, image, image_size, size, base, columns, totals, lines, WIDTH: constexpr):
    """Σ A and Σ A (1 − 2B) of each row, where A = 1 − N; ``image`` holds 1 − 2B.

    totals: (frames, lines, 2).
    """
    line, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first, width = tl.load(base + line), tl.load(columns + line)
    cover += frame * size + first
    image += frame * image_size + first
    before = tl.zeros((), tl.float64)
    all_of_it = tl.zeros((), tl.float64)
    wrong = tl.zeros((), tl.float64)
    for x in range(0, width, WIDTH):
        column = x + tl.arange(0, WIDTH)
        inside = column < width
        d = tl.load(cover + column, mask=inside, other=0.0)
        a = tl.where(inside, 1.0 - tl.exp(tl.cumsum(d, 0) + before), 0.0)
        before += tl.sum(d, 0)
        all_of_it += tl.sum(a, 0)
        wrong += tl.sum(a * tl.load(image + column, mask=inside, other=0.0).to(tl.float64), 0)
    to = totals + (frame * lines + line) * 2
    tl.store(to, all_of_it)
    tl.store(to + 1, wrong)


@jit
def find_ratios(
    totals, lines, first, count, ground, mask_sums, numbers, factors, energies, cameras, camera,
    WIDTH: constexpr,
):  # fmt: skip
    """Ψ of each camera and the factor of its gradient, from what `measure_rows` left.

    numbers: σ² and the floor; factors: (frames, cameras, 2); energies: (frames, cameras).
    """
    which, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    low, many = tl.load(first + which), tl.load(count + which)
    totals += (frame * lines + low) * 2
    all_of_it = tl.zeros((WIDTH,), tl.float64)
    wrong = tl.zeros((WIDTH,), tl.float64)
    for k in range(0, many, WIDTH):
        at = k + tl.arange(0, WIDTH)
        all_of_it += tl.load(totals + 2 * at, mask=at < many, other=0.0)
        wrong += tl.load(totals + 2 * at + 1, mask=at < many, other=0.0)
    variance = tl.load(numbers)
    floor = tl.load(numbers + 1) * tl.load(ground + which).to(tl.float64)
    to = frame * cameras + camera + which
    den = floor + tl.sum(all_of_it, 0)
    psi = (floor + tl.load(mask_sums + to) + tl.sum(wrong, 0)) / den
    tl.store(factors + 2 * to, psi)
    tl.store(factors + 2 * to + 1, -psi / (variance * den))
    tl.store(energies + to, psi * psi / (2.0 * variance))


@jit
def weigh(image, factors, RATIO: constexpr):
    """What is summed over silhouettes, without N: weights, or those of the ratio."""
    out = image.to(tl.float64)
    if RATIO:
        out = tl.load(factors + 1) * (out - tl.load(factors))
    return out


@jit
def weigh_rows(
    cover, sums, image, image_size, size, base, columns, owner, factors, cameras, camera, flags,
    counts, totals, lines, line_offset, RATIO: constexpr, WIDTH: constexpr, FLAGS: constexpr,
):  # fmt: skip
    """log N along the rows, then weights · N summed along them into ``sums``, all in one pass.

    log N itself is kept, in ``cover``, if a location of the frame is so probably occupied that its
    pixels will be summed one by one. totals: the sum of each row.  # (frames, lines)
    counts: number of flags of a frame, then of cameras; in memory, since Triton may fail to
    compile loops for a number that it knows to be 1.
    """
    n_flags = tl.load(counts)
    line, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first, width = tl.load(base + line), tl.load(columns + line)
    factors += 2 * (frame * cameras + camera + tl.load(owner + line))
    cover += frame * size + first
    sums += frame * size + first
    image += frame * image_size + first
    found = tl.zeros((FLAGS,), tl.int32)
    for k in range(0, n_flags, FLAGS):
        at = k + tl.arange(0, FLAGS)
        found = tl.maximum(found, tl.load(flags + frame * n_flags + at, mask=at < n_flags, other=0))
    keep = tl.max(found, 0) != 0
    before = tl.zeros((), tl.float64)
    total = tl.zeros((), tl.float64)
    for x in range(0, width, WIDTH):
        column = x + tl.arange(0, WIDTH)
        inside = column < width
        d = tl.load(cover + column, mask=inside, other=0.0)
        w = weigh(tl.load(image + column, mask=inside, other=0.0), factors, RATIO)
        log = tl.cumsum(d, 0) + before
        before += tl.sum(d, 0)
        weighted = tl.where(inside, w * tl.exp(log), 0.0)
        tl.store(sums + column, tl.cumsum(weighted, 0) + total, mask=inside)
        total += tl.sum(weighted, 0)
        tl.store(cover + column, log, mask=inside & keep)
    tl.store(totals + frame * lines + line_offset + line, total)


@jit
def corner(sums, first, row, column, stride, inside):
    """Integral image at the upper left corner of a pixel; 0 along the border."""
    real = inside & (row > 0) & (column > 0)
    return tl.load(sums + first + (row - 1) * stride + column - 1, mask=real, other=0.0)


@jit
def collect_boxes(
    sums, cover, image, image_size, size, boxes, n, which, base, stride, logs, factors, direct,
    out, cameras, camera, RATIO: constexpr, BLOCK: constexpr, PIXELS: constexpr,
):  # fmt: skip
    """Σ_{x ∈ R_i} w_x N_x/p_i of one camera, from an integral image; pixel by pixel for small p_i.

    boxes: (cameras, 4, n); out: (frames, cameras, n).
    """
    block, frame = tl.program_id(0), tl.program_id(2).to(tl.int64)
    mine = tl.load(which + tl.program_id(1)).to(tl.int64)
    first, length = tl.load(base + mine), tl.load(stride + mine)
    factors += 2 * (frame * cameras + camera + mine)
    sums += frame * size
    cover += frame * size
    image += frame * image_size
    lane = tl.arange(0, BLOCK)
    at = block * BLOCK + lane
    inside = at < n
    boxes += (camera + mine) * 4 * n + at
    left = tl.load(boxes, mask=inside, other=0)
    top = tl.load(boxes + n, mask=inside, other=0)
    right = tl.load(boxes + 2 * n, mask=inside, other=0)
    bottom = tl.load(boxes + 3 * n, mask=inside, other=0)
    log = tl.load(logs + frame * n + at, mask=inside, other=0.0)
    seen = right > left
    far = corner(sums, first, bottom, right, length, seen)
    far -= corner(sums, first, top, right, length, seen)
    near = corner(sums, first, bottom, left, length, seen)
    near -= corner(sums, first, top, left, length, seen)
    found = (far - near) * tl.exp(-log)
    waiting = (seen & (log < tl.load(direct))).to(tl.int32)
    while tl.max(waiting, 0) > 0:
        here = lane == tl.argmax(waiting, 0)
        x, y = tl.sum(tl.where(here, left, 0), 0), tl.sum(tl.where(here, top, 0), 0)
        width = tl.sum(tl.where(here, right, 0), 0) - x
        area = width * (tl.sum(tl.where(here, bottom, 0), 0) - y)
        own = tl.sum(tl.where(here, log, 0.0), 0)
        total = tl.zeros((PIXELS,), tl.float64)
        for k in range(0, area, PIXELS):
            pixel = k + tl.arange(0, PIXELS)
            real = pixel < area
            to = first + (y + pixel // width) * length + x + pixel % width
            w = weigh(tl.load(image + to, mask=real, other=0.0), factors, RATIO)
            total += tl.where(
                real, w * tl.exp(tl.load(cover + to, mask=real, other=0.0) - own), 0.0
            )
        found = tl.where(here, tl.sum(total, 0), found)
        waiting = tl.where(here, 0, waiting)
    tl.store(out + (frame * cameras + camera + mine) * n + at, found, mask=inside)


@jit
def collect_runs(
    sums, cover, image, image_size, size, run_at, run_column, run_length, run_start, n, which,
    logs, factors, direct, out, cameras, camera,
    RATIO: constexpr, BLOCK: constexpr, PIXELS: constexpr,
):  # fmt: skip
    """The same for silhouettes of runs; ``sums`` are along the rows alone.

    run_at: the first pixel of each run in the frame; run_start: (cameras of runs, n + 1).
    """
    block, frame = tl.program_id(0), tl.program_id(2).to(tl.int64)
    turn = tl.program_id(1)
    mine = tl.load(which + turn).to(tl.int64)
    factors += 2 * (frame * cameras + camera + mine)
    sums += frame * size
    cover += frame * size
    image += frame * image_size
    lane = tl.arange(0, BLOCK)
    at = block * BLOCK + lane
    inside = at < n
    run_start += turn * (n + 1)
    low = tl.load(run_start + at, mask=inside, other=0)
    many = tl.load(run_start + at + 1, mask=inside, other=0) - low
    log = tl.load(logs + frame * n + at, mask=inside, other=0.0)
    found = tl.zeros((BLOCK,), tl.float64)
    for k in range(tl.max(many, 0)):
        here = k < many
        to = tl.load(run_at + low + k, mask=here, other=0)
        length = tl.load(run_length + low + k, mask=here, other=1)
        column = tl.load(run_column + low + k, mask=here, other=0)
        found += tl.load(sums + to + length - 1, mask=here, other=0.0)
        found -= tl.load(sums + to - 1, mask=here & (column > 0), other=0.0)
    found = found * tl.exp(-log)
    waiting = ((many > 0) & (log < tl.load(direct))).to(tl.int32)
    while tl.max(waiting, 0) > 0:
        here = lane == tl.argmax(waiting, 0)
        run, runs = tl.sum(tl.where(here, low, 0), 0), tl.sum(tl.where(here, many, 0), 0)
        own = tl.sum(tl.where(here, log, 0.0), 0)
        total = tl.zeros((PIXELS,), tl.float64)
        for r in range(run, run + runs):
            to, length = tl.load(run_at + r), tl.load(run_length + r)
            for k in range(0, length, PIXELS):
                pixel = k + tl.arange(0, PIXELS)
                real = pixel < length
                w = weigh(tl.load(image + to + pixel, mask=real, other=0.0), factors, RATIO)
                each = tl.load(cover + to + pixel, mask=real, other=0.0)
                total += tl.where(real, w * tl.exp(each - own), 0.0)
        found = tl.where(here, tl.sum(total, 0), found)
        waiting = tl.where(here, 0, waiting)
    tl.store(out + (frame * cameras + camera + mine) * n + at, found, mask=inside)


@jit
def add_cameras(parts, out, entries, n, counts, BLOCK: constexpr):
    """Add Σ_c of what `collect_boxes` and `collect_runs` left to the gradient of label 0.

    parts: (frames, cameras, n); out: as q of `take_logs`.
    """
    frame = tl.program_id(1).to(tl.int64)
    cameras = tl.load(counts + 1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.zeros((BLOCK,), tl.float64)
    parts += frame * cameras * n + at
    for camera in range(cameras):
        total += tl.load(parts + camera * n, mask=inside, other=0.0)
    out += frame * entries + 2 * at
    before = tl.load(out, mask=inside, other=0.0)
    tl.store(out, before + total.to(before.dtype), mask=inside)
