"""Launching the kernels of a `BatchProgram`: which one, with which arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from proxfield.core.devices.cuda import interpreted, torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.plan import Kind
from proxfield.core.engines.triton.general_pack import Bucket, GeneralTensors
from proxfield.core.engines.triton.planes_pack import BLOCK, PlaneTensors
from proxfield.core.engines.triton.update import arithmetic, binary, general, planes, team

if TYPE_CHECKING:
    from proxfield.core.engines.triton.batch import BatchProgram
    from proxfield.core.engines.triton.device_pack import BinaryTensors
    from proxfield.core.engines.triton.state import Slot


NO_MOMENT = tuple(kind for kind in Kind if kind.moments == 0)
ONE_MOMENT = tuple(kind for kind in Kind if kind.moments == 1)
"""With twice as many warps these kinds are a tenth faster, and a quarter with F."""


class Flags(NamedTuple):
    """What kernels are compiled for; ``kind`` is that of a rule, or `kinds.LOOK`."""

    kind: int
    adaptive: bool
    trace: bool
    flat: bool
    search: bool = False

    @property
    def words(self) -> dict[str, int]:
        """As the kernels' own arguments."""
        return {
            "KIND": self.kind, "ADAPTIVE": self.adaptive, "TRACE": self.trace, "FLAT": self.flat
        }  # fmt: skip


def moments(slot: Slot) -> tuple[Tensor, Tensor]:
    """Both moments, or something else with an address where a rule has none."""
    other = slot.buffers
    return other if slot.u is None else slot.u, other if slot.v is None else slot.v


def step(batch: BatchProgram, slot: Slot, flags: Flags) -> None:
    """One update of all fields that aren't done; leaves partial sums."""
    p, (u, v) = batch.pack, moments(slot)
    if isinstance(p, GeneralTensors):
        for bucket, first in zip(p.buckets, p.starts[:-1], strict=True):
            general.tile_step[(bucket.n_blocks,)](
                slot.buffers, batch.stride, bucket.field, slot.board, slot.parts[int(first) :],
                *tile_arguments(batch, p, slot, bucket), num_warps=bucket.warps,
                **tile_flags(batch, bucket, flags),
            )  # fmt: skip
    elif isinstance(p, PlaneTensors):
        planes.plane_step[(p.n_blocks,)](
            slot.buffers, batch.stride, p.n, slot.board, slot.parts, p.unary, u, v, slot.step,
            slot.safe, p.start, p.length, p.to, p.weight, p.table_start, p.table_length,
            p.table_to, p.table, p.scales, slot.parameters, HARD=p.hard, DEGREE=p.degree,
            GROUPS=p.groups, T_DEGREE=p.table_degree, DOT=p.dot, LABELS=p.labels, L=p.lanes,
            BLOCK=BLOCK,
            num_warps=BLOCK // 32, num_stages=1, maxnreg=registers(p, flags), **flags.words,
        )  # fmt: skip
    elif p.form == "diagonals":
        d = [*p.distances, 1, 1, 1]  # those that aren't there aren't looked at
        binary.diagonal_step[(p.n_blocks,)](
            slot.buffers[0, batch.front :], batch.stride, p.diagonal[0, batch.front :], p.bias, u,
            v, slot.step, slot.safe, slot.board, slot.parameters, slot.parts, batch.joined.n,
            p.row, p.columns, *d[:4], HARD=p.hard, D=len(p.distances), ROLL=p.roll, EVEN=p.even,
            ROWS=p.rows, WIDTH=p.width, num_warps=p.warps * (2 if flags.kind in ONE_MOMENT else 1),
            **flags.words,
        )  # fmt: skip
    else:
        binary.slice_step[(p.n_blocks,)](
            slot.buffers, batch.stride, p.variable, p.start, p.length, p.field, p.column,
            p.weight, p.bias, u, v, slot.step, slot.safe, slot.board, slot.parameters,
            slot.parts, HARD=p.hard, BLOCK=p.block, WIDE=p.wide, num_warps=p.warps, **flags.words,
        )  # fmt: skip


def registers(p: PlaneTensors, flags: Flags) -> int | None:
    """Registers of a thread, at most: with shared tables a fifth block fits, a twentieth faster."""
    return 96 if p.dot and p.groups and flags.kind in NO_MOMENT and not flags.adaptive else None


def finish(batch: BatchProgram, slot: Slot, flags: Flags) -> None:
    """Adds up what `step` left, and says whether to go on."""
    p = batch.pack
    width, warps = (256, 4) if p.n_blocks <= 256 else (1024, 8)
    if p.n_blocks > 4096:
        width, warps = 4096, 16
    arithmetic.finish[(batch.fields,)](
        slot.parts, p.first, p.count, slot.board, slot.numbers, slot.parameters,
        slot.out[0], slot.out[1], slot.out.shape[2],
        TRACE=flags.trace, ADAPTIVE=flags.adaptive, SEARCH=flags.search, WIDTH=width,
        num_warps=warps,
    )  # fmt: skip


def run(batch: BatchProgram, slot: Slot, flags: Flags) -> None:
    """All updates of small fields in one launch."""
    p, (u, v) = batch.pack, moments(slot)
    if isinstance(p, GeneralTensors):
        bucket = p.buckets[0]
        general.tile_run[(batch.fields,)](
            slot.buffers, batch.stride, p.first, p.count, slot.board, slot.numbers,
            slot.out[0], slot.out[1], slot.out.shape[2],
            *tile_arguments(batch, p, slot, bucket), num_warps=bucket.warps,
            **tile_flags(batch, bucket, flags),
        )  # fmt: skip
        return
    assert not isinstance(p, PlaneTensors), "never small"
    if p.shared:
        run_teams(batch, p, slot, flags)
        return
    binary.binary_run[(batch.fields,)](
        slot.buffers, p.field_size, p.field_offset, p.column, p.weight, p.bias, u, v,
        slot.step, slot.safe, slot.spins, slot.spins.stride(0), slot.board, slot.numbers,
        slot.parameters, slot.out[0], slot.out[1], slot.out.shape[2],
        HARD=p.hard, SIZE=p.largest, K=p.width, HOLD=p.hold, num_warps=p.warps, num_stages=1,
        # without a limit the compiler may take half the registers there are, and spill
        maxnreg=65536 // (32 * p.warps) if p.warps > 8 else None, **flags.words,
    )  # fmt: skip


def run_teams(batch: BatchProgram, p: BinaryTensors, slot: Slot, flags: Flags) -> None:
    """The same for fields that several programs share."""
    if slot.meeting is None or slot.meeting[1].shape[2] != p.team:
        arrived = torch.zeros(batch.fields, dtype=torch.int32, device=batch.device)
        exact = {"dtype": torch.float64, "device": batch.device}
        slot.meeting = arrived, torch.zeros((batch.fields, 2, p.team, 2), **exact)
    slot.meeting[0].zero_()
    if not interpreted():
        team_launch(batch, p, slot, flags, team.TOGETHER, {"launch_cooperative_grid": True})
        return
    while not bool((slot.board[:, arithmetic.DONE] != 0).all()):  # one program after another
        team_launch(batch, p, slot, flags, team.MOVE, {})
        team_launch(batch, p, slot, flags, team.DECIDE, {})


def team_launch(
    batch: BatchProgram, p: BinaryTensors, slot: Slot, flags: Flags, phase: int,
    options: dict[str, bool],
) -> None:  # fmt: skip
    """One launch of `team.team_run`."""
    assert slot.meeting is not None, "made by `run_teams`"
    team.team_run[(len(p.whose),)](
        slot.buffers, batch.stride, p.whose, p.which, p.members, p.field_size, p.field_offset,
        p.column, p.weight, p.bias, *moments(slot), slot.step, slot.safe, slot.spins,
        slot.spins.stride(0), slot.board, slot.numbers, slot.parameters, slot.out[0],
        slot.out[1], slot.out.shape[2], *slot.meeting, HARD=p.hard, SIZE=p.part, K=p.width,
        TEAM=p.team, PHASE=phase, num_warps=max(1, min(16, p.part // 64)), num_stages=1,
        **flags.words, **options,
    )  # fmt: skip


def tile_arguments(
    batch: BatchProgram, p: GeneralTensors, slot: Slot, bucket: Bucket
) -> list[Tensor | int]:
    """What both kernels over tiles take, from ``variable`` to ``parameters``."""
    u, v = moments(slot)
    shift = p.unary if slot.shift is None else slot.shift
    return [
        bucket.variable, p.offset, p.cards, batch.joined.common, p.unary, shift, u, v,
        slot.step, slot.safe, *bucket.arguments, p.table, slot.parameters,
    ]  # fmt: skip


def tile_flags(batch: BatchProgram, bucket: Bucket, flags: Flags) -> dict[str, int]:
    """What both are compiled for."""
    return {
        **flags.words, "SAME": batch.joined.common > 0, "AGREE": bucket.agree,
        "PAIRS": bucket.pairs, "ARITY": bucket.arity, "SHIFT": bool(batch.terms),
        "L": bucket.labels, "BLOCK": bucket.block, "M": bucket.neighbor_labels, "E": bucket.edges,
        "OWN": batch.joined.common if bucket.own else 0,
    }  # fmt: skip
