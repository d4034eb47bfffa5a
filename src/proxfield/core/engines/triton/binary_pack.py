"""Binary fields for the kernels of `update.binary`, and their launches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from proxfield.core.devices.cuda import interpreted, processors, torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.plan import Kind
from proxfield.core.engines.triton.device_pack import Blocks, Joined, Slot, Tensors, power_of_two
from proxfield.core.engines.triton.update import binary, board
from proxfield.core.engines.triton.update.kinds import RuleForm
from proxfield.core.terms.base import Doubles, Ints

ONE_MOMENT = tuple(kind for kind in Kind if kind.moments == 1)
"""With twice as many warps these kinds are a tenth faster, and a quarter with F."""
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


def team_members(joined: Joined, part: int) -> Ints:
    """Programs of each field where one has up to ``part`` variables.  # (fields,)"""
    return np.asarray(np.maximum(1, -(-np.diff(joined.bounds) // part)))


def team_part(joined: Joined, tensors: Tensors, degree: int) -> int:
    """Variables of each program where programs that run at the same time hold all fields; or 0."""
    if degree > TEAM_DEGREE or joined.n >= MIN_DIAGONALS:
        return 0
    room = processors(tensors.device)
    fit = (p for p in TEAM_PARTS if int(team_members(joined, p).sum()) <= room)
    return next(fit, 0)


class BinaryTensors:
    """Binary fields for the kernels of `update.binary`.

    Their ``form`` is "diagonals", "slices", "small" (all updates of a field in one program) or
    "team" (in several that wait for each other), by default what fits best.
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
        self.sizes = self.tensors.ints(np.diff(joined.bounds))
        self.offsets = self.tensors.ints(joined.bounds[:-1])
        self.n_blocks = len(joined.lowereds)
        self.first = self.count = self.offsets  # not used: no partial sums
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
        fits = len(self.whose) <= processors(self.tensors.device)
        self.shared = fits and (int(members.max()) > 2 or self.form == "team")
        rooms = members * self.part if self.shared else np.full(len(members), self.largest)
        # neighbors and couplings, with room for so many variables in each field
        owner, most = self.joined.owner(), self.width
        inside = np.arange(self.n) - self.joined.bounds[owner]
        inside += (np.cumsum(rooms) - rooms)[owner]
        here, rank, there, weights = self._edges
        at = inside[here] * most + rank
        self.room = int(rooms.sum())
        column = np.zeros(self.room * most, dtype=np.int64)
        weight = np.zeros(len(column))
        column[at], weight[at] = there, weights
        self.small = binary.SmallFields(
            self.sizes, self.offsets, self.tensors.ints(column), self.tensors.floats(weight), 0
        )
        if self.shared:
            self.small = self.small._replace(
                whose=self.whose, part=self.which, members=self.members
            )
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
        """Cut a field with diagonals into columns of ``width`` variables, ``rows`` long."""
        self.width, self.warps = width, warps
        self.row = self.distances[-1] if self.roll else width
        self.rows = rows if self.roll else 1
        lines = -(-self.n // self.row)
        self.even = self.n % (self.row * self.rows) == 0 and self.row % width == 0
        self.columns = -(-self.row // width)
        self.n_blocks = self.columns * -(-lines // self.rows)
        d = [*self.distances, 1, 1, 1]  # those that aren't there aren't looked at
        self.lines = binary.Diagonals(self.n, self.row, self.columns, *d[:4])
        self.grid = binary.DiagonalGrid(len(self.distances), self.roll, self.even, self.rows, width)
        self.first = self.tensors.ints(np.zeros(1, dtype=np.int64))
        self.count = self.tensors.ints(np.array([self.n_blocks]))

    def _pack_slices(self, edges: Ints, weights: Doubles, degree: Ints) -> None:
        joined = self.joined
        mean = 2.0 * len(edges) / max(1, self.n)
        wide = min(64, power_of_two(max(1, round(mean))))
        self.shape, self.warps = binary.SliceShape(max(16, 512 // wide), wide), 4
        blocks = Blocks(
            np.arange(self.n), joined.owner(), degree, self.shape.block, len(joined.lowereds)
        )
        t = self.tensors
        here, there = edges.T.ravel(), edges[:, ::-1].T.ravel()
        both = np.concatenate([weights, weights])
        start, length, (column, weight) = blocks.fill(here, there, both)
        self.weight = t.floats(weight)
        self.slices = binary.Slices(
            t.ints(blocks.variable), t.ints(start, wide=True), t.ints(length),
            t.ints(blocks.field), t.ints(column),
        )  # fmt: skip
        self.first, self.count = t.ints(blocks.first), t.ints(blocks.count)
        self.n_blocks = len(blocks)

    def step(self, slot: Slot, rule: RuleForm) -> None:
        """One update of all fields that aren't done; leaves partial sums."""
        if self.form == "diagonals":
            binary.diagonal_step[(self.n_blocks,)](
                slot.buffers[0, self.front :], slot.status, self.bias, *slot.movement(rule)[:4],
                self.diagonal[0, self.front :], self.lines, RULE=rule, GRID=self.grid,
                num_warps=self.warps * (2 if rule.kind in ONE_MOMENT else 1),
            )  # fmt: skip
        else:
            binary.slice_step[(self.n_blocks,)](
                slot.buffers, slot.status, self.bias, *slot.movement(rule)[:4],
                self.slices, self.weight, RULE=rule, SHAPE=self.shape, num_warps=self.warps,
            )  # fmt: skip

    def run(self, slot: Slot, rule: RuleForm) -> None:
        """All updates of small fields in one launch."""
        if not self.shared:
            # without a limit the compiler may take half the registers there are, and spill
            most = 65536 // (32 * self.warps) if self.warps > 8 else None
            form = binary.SmallForm(self.largest, self.width, self.hold)
            self._launch(slot, rule, self.small, form, num_warps=self.warps, maxnreg=most)
            return
        if slot.meeting is None or slot.meeting[1].shape[2] != self.team:
            device, shape = self.tensors.device, (self.n_blocks, 2, self.team, 2)
            arrived = torch.zeros(self.n_blocks, dtype=torch.int32, device=device)
            slot.meeting = arrived, torch.zeros(shape, dtype=torch.float64, device=device)
        arrived, found = slot.meeting
        arrived.zero_()
        fields = self.small._replace(arrived=arrived, found=found)
        form = binary.SmallForm(self.part, self.width, True, self.team)
        options = {"num_warps": max(1, min(16, self.part // 64))}
        if not interpreted():
            self._launch(slot, rule, fields, form, launch_cooperative_grid=True, **options)
            return
        while not bool((slot.board[:, board.DONE] != 0).all()):  # one program after another
            for phase in (binary.MOVE, binary.DECIDE):
                self._launch(slot, rule, fields, form._replace(phase=phase), **options)

    def _launch(
        self, slot: Slot, rule: RuleForm, fields: binary.SmallFields, form: binary.SmallForm,
        **options: int | None,
    ) -> None:  # fmt: skip
        programs = len(self.whose) if form.team else self.n_blocks
        binary.binary_run[(programs,)](
            slot.buffers, slot.spins, slot.status, fields._replace(stride=slot.spins.stride(0)),
            self.bias, *slot.movement(rule)[:4], RULE=rule, FORM=form, num_stages=1, **options,
        )  # fmt: skip

    def product(self, v: Tensor) -> Tensor:
        """−W v, without the biases, in float64.  # (n,)"""
        out = torch.zeros_like(v)
        if self.form == "diagonals":
            n, front = self.n, self.front
            padded = torch.zeros(self.stride, dtype=v.dtype, device=v.device)
            padded[front : front + n] = v
            for row, d in zip(self.diagonal, self.distances, strict=True):
                out += row[front : front + n] * padded[front + d : front + d + n]
                before = slice(front - d, front - d + n)
                out += row[before] * padded[before]
            return out
        binary.slice_product[(self.n_blocks,)](
            v, out, self.slices, self.weight, SHAPE=self.shape, num_warps=self.warps,
        )  # fmt: skip
        return out
