"""Many items, one function: in this process, in others, or on a cluster."""

from proxfield.core.jobs.running import (
    ClusterError,
    LostWorkerError,
    Part,
    Workers,
    ends_the_run,
    import_joblib,
    open_workers,
    run_jobs,
    slots_of,
    threads_per_item,
)

__all__ = [
    "ClusterError",
    "LostWorkerError",
    "Part",
    "Workers",
    "ends_the_run",
    "import_joblib",
    "open_workers",
    "run_jobs",
    "slots_of",
    "threads_per_item",
]
