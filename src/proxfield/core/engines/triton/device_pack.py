"""Lowered fields as the flat tensors that the kernels on a GPU read; several fields as one.

Fields of a batch are laid side by side: their variables are numbered through, and no block of
variables holds those of two fields, so that each field has sums and a board of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.devices.cuda import cooperative, torch
from proxfield.core.devices.tensors import Tensor, TorchDevice, TorchDtype
from proxfield.core.engines.numba.pack import is_binary
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Doubles, Floats, Ints

V = TypeVar("V", bound=np.generic)

MAX_DIAGONALS = 4
MIN_DIAGONALS = 1 << 18
"""Variables from which on they pay: a grid of 300×300 takes 6 µs as slices, 15 µs as diagonals."""
MIN_FILL = 0.4
"""Diagonals pay while at least this share of their entries holds a coupling."""
SMALL_BINARY = 8192
"""Variables that one program holds."""
SMALL_DEGREE = 16
"""Neighbors of each that one program holds."""
SMALL_SLOTS = {"float32": 32768, "float64": 8192}
"""Variables times neighbors that one program holds: as its registers do."""
HELD = 8192
"""The same for those whose couplings stay in registers from one update to the next."""
PART = 1024
"""Variables of a field that one program has where several share it: the fastest on an H200."""
TEAM_PARTS = (512, 1024, 2048)
"""The same for fields that are too large for one: the first for which the device has room."""
TEAM_DEGREE = 8
"""Neighbors of each variable up to which such programs are faster than single launches."""
MAX_PINNED_BYTES = 2**26
"""Bytes for which there is room twice."""
SMALL_WORK = 1 << 14
"""Entries, tiles included, up to which one program iterates on any other field."""


@dataclass
class Joined:
    """Several lowered fields as one."""

    lowereds: list[Lowered]
    cards: Ints = field(init=False)
    bounds: Ints = field(init=False)
    """First variable of each field.  # (fields + 1,)"""

    def __post_init__(self) -> None:
        self.cards = _cat([low.layout.cardinalities for low in self.lowereds], np.int64)
        self.bounds = np.cumsum([0, *(low.layout.n_vars for low in self.lowereds)])
        self.offsets = np.concatenate([[0], np.cumsum(self.cards)])
        self.n, self.size = len(self.cards), int(self.offsets[-1])
        self.binary = all(is_binary(low) and not low.extras for low in self.lowereds) and self.n > 0
        same = self.n > 0 and bool((self.cards == self.cards[0]).all())
        self.common = int(self.cards[0]) if same else 0
        """Labels of all variables where they agree, else 0."""

    @property
    def unary(self) -> Floats:
        """Unary energies of all entries.  # (size,)"""
        return _cat([low.unary for low in self.lowereds], np.float64)

    def edges(self, name: str) -> tuple[Ints, NDArray[np.float64]]:
        """Edges and weights of ``ising`` or ``potts`` in all fields.  # (m, 2), (m,)"""
        ends, weights = [np.zeros((0, 2), dtype=np.int64)], [np.zeros(0)]
        for low, first in zip(self.lowereds, self.bounds, strict=False):
            term = getattr(low, name)
            if term is not None:
                ends.append(term.edges + first)
                weights.append(term.weights)
        return np.concatenate(ends), np.concatenate(weights)

    def owner(self) -> Ints:
        """The field of each variable.  # (n,)"""
        return np.repeat(np.arange(len(self.lowereds)), np.diff(self.bounds))


def _cat(arrays: list[NDArray[V]], dtype: type[np.generic]) -> NDArray[V]:
    if len(arrays) == 1:
        return np.asarray(arrays[0])
    return np.concatenate([np.zeros(0, dtype=dtype), *arrays])


def upload(arrays: Sequence[Floats], device: TorchDevice) -> Tensor:
    """Arrays one after another on a device; those that are the same memory are copied once."""
    if len({each.dtype for each in arrays}) > 1:
        arrays = [each.astype(np.float64) for each in arrays]
    first = from_numpy(arrays[0])
    if all(same_memory(each, arrays[0]) for each in arrays[1:]):
        return first.to(device).repeat(len(arrays))
    place = torch.device(device)
    total = sum(len(each) for each in arrays)
    staging = torch.empty(total, dtype=first.dtype, pin_memory=place.type == "cuda")
    torch.cat([from_numpy(each) for each in arrays], out=staging)  # on all cores
    return staging.to(place, non_blocking=True)


def same_memory(a: Floats, b: Floats) -> bool:
    """Whether two arrays show the same numbers without looking at them."""
    return a is b or (
        a.__array_interface__["data"] == b.__array_interface__["data"]
        and (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides)
    )


def download(values: Tensor) -> NDArray[np.float64]:
    """A tensor on the host, through memory that the device can write to by itself."""
    if values.device.type != "cuda":
        return np.asarray(values.cpu().numpy())
    staging = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values)
    # an array that isn't pinned; numpy asks for large pages, which torch doesn't
    out: NDArray[np.float64] = np.empty_like(staging.numpy())
    torch.from_numpy(out).copy_(staging)
    return out


class Blocks:
    """Variables cut into blocks of about equal degree, none of two fields.

    Args:
        which: The variables.  # (m,)
        owner: The field of every variable.  # (n,)
        degree: What to sort by, of every variable; only its power of two counts, so that
            neighbors mostly stay together.  # (n,)
        block: Variables in a block.
        fields: Number of fields.
        exact: Sort by the degree itself, the largest first?
    """

    def __init__(
        self, which: Ints, owner: Ints, degree: Ints, block: int, fields: int, exact: bool = False
    ) -> None:
        self.block = block
        rank = -degree[which]
        if not exact:
            rank = np.ceil(np.log2(np.maximum(degree[which], 1))).astype(np.int64)
        ordered = which
        if fields > 1 or (len(rank) and (rank != rank[0]).any()):
            ordered = which[np.lexsort((rank, owner[which]))]
        counts = np.bincount(owner[ordered], minlength=fields)
        blocks = -(-counts // block)
        self.first = np.cumsum(blocks) - blocks
        self.count = blocks
        """Blocks of each field, and the first of them.  # (fields,)"""
        self.field = np.repeat(np.arange(fields), blocks)
        self.variable = np.full(int(blocks.sum()) * block, -1, dtype=np.int64)
        inside = np.arange(len(ordered)) - np.repeat(np.cumsum(counts) - counts, counts)
        at = np.repeat(self.first * block, counts) + inside
        self.variable[at] = ordered
        self.place = np.full(len(owner), -1, dtype=np.int64)
        """Where each variable is.  # (n,)"""
        self.place[ordered] = at

    def __len__(self) -> int:
        return len(self.field)

    def slice(self, here: Ints) -> tuple[Ints, Ints, Ints, Ints, int]:
        """Room for values of directed edges, by the variable at which they are wanted.

        Args:
            here: That variable.  # (m,)

        Returns:
            Start and length of each block's slice, which edges are of these blocks, their places,
            and the room.
        """
        mine = np.flatnonzero(self.place[here] >= 0)
        place = self.place[here[mine]]
        order = np.argsort(place, kind="stable")
        mine, place = mine[order], place[order]
        new = np.flatnonzero(np.diff(place, prepend=-1))
        runs = np.diff(np.append(new, len(place)))
        rank = np.arange(len(place)) - np.repeat(new, runs)
        length = np.zeros(len(self), dtype=np.int64)
        np.maximum.at(length, place // self.block, rank + 1)
        start = np.cumsum(length * self.block) - length * self.block
        at = start[place // self.block] + rank * self.block + place % self.block
        return start, length, mine, at, int((length * self.block).sum())


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(0, int(n) - 1).bit_length()


def processors(device: TorchDevice) -> int:
    """Programs that surely run at the same time."""
    if device.type != "cuda":
        return 2**31  # the interpreter: one after another
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def from_numpy(values: NDArray[np.generic]) -> Tensor:
    """A tensor of an array on the host, without copying it unless it can't be written to."""
    values = np.ascontiguousarray(values)
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def team_members(joined: Joined, part: int) -> Ints:
    """Programs of each field where one has up to ``part`` variables.  # (fields,)"""
    return np.asarray(np.maximum(1, -(-np.diff(joined.bounds) // part)))


def team_part(joined: Joined, tensors: Tensors, degree: int) -> int:
    """Variables of each program where programs that run at the same time hold all fields.

    Returns:
        0 where they can't.
    """
    if not cooperative() or degree > TEAM_DEGREE or joined.n >= MIN_DIAGONALS:
        return 0
    room = processors(tensors.device)
    fit = (p for p in TEAM_PARTS if int(team_members(joined, p).sum()) <= room)
    return next(fit, 0)


class Tensors:
    """Numpy arrays to tensors of one device and floating-point type."""

    def __init__(self, dtype: str, device: TorchDevice) -> None:
        self.name, self.dtype, self.device = dtype, getattr(torch, dtype), device

    def floats(self, values: Floats) -> Tensor:
        """In the state's type; never empty, so that it has an address."""
        values = values if values.size else np.zeros(1)
        return self._put(values, self.dtype)

    def ints(self, values: Ints, wide: bool = False) -> Tensor:
        """32-bit integers, or 64-bit ones."""
        values = values if values.size else np.zeros(1, dtype=np.int64)
        kind = torch.int64 if wide or values.max() >= 2**31 else torch.int32
        return self._put(values, kind)

    def _put(self, values: Floats | Ints, kind: TorchDtype) -> Tensor:
        """On the device in a type: converted there if it is little, which is faster."""
        if values.nbytes <= MAX_PINNED_BYTES:
            return from_numpy(values).to(self.device).to(kind)
        return from_numpy(values).to(self.device, kind)


class BinaryTensors:
    """A binary field (or several) for the kernels of `gpu.binary`.

    Args:
        joined: The fields.
        tensors: Where to, and the type.
        form: "diagonals", "slices", "small" (all updates of a field in one program) or "team" (in
            several that wait for each other); by default what fits best.
    """

    def __init__(self, joined: Joined, tensors: Tensors, form: str | None = None) -> None:
        self.joined, self.tensors = joined, tensors
        self.bias: Tensor | None = None
        self.hard = False
        self.constants: Tensor | None = None
        self.unary: Tensor | None = None
        self.inside: Tensor | None = None
        """Where small fields keep their variables, with room for more in each.  # (n,)"""
        self.front, self.stride = 0, 0
        """Padding in front of states and diagonals, and the length of both with it."""
        n = self.n = joined.n
        edges, weights = joined.edges("ising")
        weights = -4.0 * weights  # −W
        gap = edges[:, 1] - edges[:, 0]  # positive: lowering sorts the ends
        distances = np.unique(gap) if len(gap) else np.zeros(0, dtype=np.int64)
        degree = np.bincount(edges.ravel(), minlength=n)
        most = power_of_two(max(int(degree.max(initial=0)), 2))
        largest = int(np.diff(joined.bounds).max(initial=0))
        if form is None:
            few = 0 < len(distances) <= MAX_DIAGONALS
            full = len(edges) >= MIN_FILL * n * len(distances)
            if (
                largest <= SMALL_BINARY
                and most <= SMALL_DEGREE
                and power_of_two(largest) * most <= SMALL_SLOTS[tensors.name]
            ):
                form = "small"
            elif team_part(joined, tensors, most):
                form = "team"
            else:
                alone = len(joined.lowereds) == 1 and few and full
                long = MIN_DIAGONALS <= n < 2**31 - 2**20
                form = "diagonals" if alone and long else "slices"
        self.form = form
        if form in ("small", "team"):
            self._pack_small(edges, weights, most, largest)
        elif form == "diagonals":
            self._pack_diagonals(edges, weights, gap, distances)
        else:
            self._pack_slices(edges, weights, degree)

    def set_unary(self, unary: Tensor) -> None:
        """Biases from unary energies, ±inf where a label is impossible, and the constants.

        The constant of a field is its energy at uniform marginals, which the compact form leaves
        out; a variable with an impossible label counts with the energy of the other one.

        Args:
            unary: A float64 tensor on the device.  # (size,)
        """
        self.unary = unary
        pairs = unary.reshape(-1, 2)
        bias = torch.nan_to_num(pairs[:, 1] - pairs[:, 0], nan=0.0, posinf=np.inf, neginf=-np.inf)
        clamped = torch.isinf(bias)
        self.hard = bool(clamped.any())
        uniform = torch.where(clamped, pairs.amin(1), pairs.mean(1))
        bounds = self.joined.bounds.tolist()
        sums = [uniform[a:b].sum() for a, b in pairwise(bounds)]
        own = torch.as_tensor([low.constant for low in self.joined.lowereds], dtype=torch.float64)
        self.constants = own.to(unary) + torch.stack(sums)
        bias = bias.to(self.tensors.dtype)
        if self.inside is not None:
            wide = bias.new_zeros(self.room)
            wide[self.inside] = bias
            bias = wide
        if self.bias is not None and self.bias.shape == bias.shape:
            self.bias.copy_(bias)  # where recorded graphs look for it
        else:
            self.bias = bias

    def _pack_small(self, edges: Ints, weights: Doubles, most: int, largest: int) -> None:
        joined, n = self.joined, self.n
        self.width, self.largest = most, max(32, power_of_two(largest))
        # 16 warps are the fastest on an H200 from 512 to 8192 variables; couplings fit beside the
        # rest in their registers up to 2048 variables with four neighbors
        self.warps = min(16, max(1, self.largest // 32))
        self.hold = self.warps == 16 and self.largest * most <= HELD
        here, there = edges.T.ravel(), edges[:, ::-1].T.ravel()
        order = np.argsort(here, kind="stable")
        here, there = here[order], there[order]
        rank = np.arange(len(here)) - np.searchsorted(here, np.arange(n))[here]
        first = joined.bounds[joined.owner()[here]]
        self._edges = here, rank, there - first, np.concatenate([weights, weights])[order]
        self.field_size = self.tensors.ints(np.diff(joined.bounds))
        self.field_offset = self.tensors.ints(joined.bounds[:-1])
        self.n_blocks = len(joined.lowereds)
        self.first = self.count = self.field_offset  # not used: no partial sums
        part = team_part(joined, self.tensors, most) if self.form == "team" else PART
        self.share(part or PART)

    def share(self, part: int) -> None:
        """Let teams of programs share small fields, each with up to ``part`` variables.

        Two wait for each other longer than one takes: only if some field is for three or more.
        """
        self.part = min(part, self.largest)
        members = team_members(self.joined, self.part)
        self.team = power_of_two(int(members.max()))
        self.members = self.tensors.ints(members)
        self.whose = self.tensors.ints(np.repeat(np.arange(len(members)), members))
        self.which = self.tensors.ints(np.concatenate([np.arange(m) for m in members]))
        fits = cooperative() and len(self.whose) <= processors(self.tensors.device)
        self.shared = fits and (int(members.max()) > 2 or self.form == "team")
        rooms = members * self.part if self.shared else np.full(len(members), self.largest)
        self._place(rooms)

    def _place(self, rooms: Ints) -> None:
        """Neighbors and couplings, with room for so many variables in each field."""
        owner, most = self.joined.owner(), self.width
        inside = np.arange(self.n) - self.joined.bounds[owner]
        inside += (np.cumsum(rooms) - rooms)[owner]
        here, rank, there, weights = self._edges
        at = inside[here] * most + rank
        self.room = int(rooms.sum())
        column = np.zeros(self.room * most, dtype=np.int64)
        weight = np.zeros(len(column))
        column[at], weight[at] = there, weights
        self.column = self.tensors.ints(column)
        self.weight = self.tensors.floats(weight)
        self.inside = torch.as_tensor(inside).to(self.tensors.device)
        if self.unary is not None:
            self.set_unary(self.unary)

    def _pack_diagonals(self, edges: Ints, weights: Doubles, gap: Ints, distances: Ints) -> None:
        """The most filled distance of those long enough comes last: it is walked along."""
        n = self.n
        counts = np.bincount(np.searchsorted(distances, gap), minlength=len(distances))
        long = np.flatnonzero(distances >= 128)
        self.roll = len(long) > 0
        order = list(range(len(distances)))
        if self.roll:
            last = int(long[np.argmax(counts[long])])
            order.remove(last)
            order.append(last)
        self.distances = [int(distances[k]) for k in order]
        self.front = -(-int(distances.max()) // 16) * 16
        self.stride = -(-(n + 2 * self.front) // 16) * 16
        diagonal = np.zeros((len(order), self.stride))
        at = np.argsort(order)[np.searchsorted(distances, gap)]
        diagonal[at, self.front + edges[:, 0]] = weights
        self.diagonal = self.tensors.floats(diagonal)
        self.cut(512, 16, 4)

    def cut(self, width: int, rows: int, warps: int) -> None:
        """How a field with diagonals is cut: columns of ``width`` variables, ``rows`` long."""
        self.width, self.warps = width, warps
        self.row = self.distances[-1] if self.roll else width
        self.rows = rows if self.roll else 1
        lines = -(-self.n // self.row)
        self.even = self.n % (self.row * self.rows) == 0 and self.row % width == 0
        self.columns = -(-self.row // width)
        self.n_blocks = self.columns * -(-lines // self.rows)
        self.first = self.tensors.ints(np.zeros(1, dtype=np.int64))
        self.count = self.tensors.ints(np.array([self.n_blocks]))

    def _pack_slices(self, edges: Ints, weights: Doubles, degree: Ints) -> None:
        joined = self.joined
        mean = 2.0 * len(edges) / max(1, self.n)
        self.wide = min(64, power_of_two(max(1, round(mean))))
        self.block, self.warps = max(16, 512 // self.wide), 4
        blocks = Blocks(np.arange(self.n), joined.owner(), degree, self.block, len(joined.lowereds))
        t = self.tensors
        here, there = edges.T.ravel(), edges[:, ::-1].T.ravel()
        start, length, mine, at, room = blocks.slice(here)
        column, weight = np.zeros(room, dtype=np.int64), np.zeros(room)
        column[at] = there[mine]
        weight[at] = np.concatenate([weights, weights])[mine]
        self.column, self.weight = t.ints(column), t.floats(weight)
        self.start, self.length = t.ints(start, wide=True), t.ints(length)
        self.variable, self.field = t.ints(blocks.variable), t.ints(blocks.field)
        self.first, self.count = t.ints(blocks.first), t.ints(blocks.count)
        self.n_blocks = len(blocks)
