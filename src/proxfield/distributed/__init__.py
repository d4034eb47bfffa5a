"""One field over several processes: partitions, transports, `infer`; docs/how-to/distributed.md."""

from proxfield.distributed.grid import grid_partition
from proxfield.distributed.infer import PartResult, infer
from proxfield.distributed.partition import Partition
from proxfield.distributed.transport import Alone, Transport, connect, run_threads

__all__ = [
    "Alone",
    "PartResult",
    "Partition",
    "Transport",
    "connect",
    "grid_partition",
    "infer",
    "run_threads",
]
