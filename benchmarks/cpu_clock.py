"""Any command of proxfield with budgets in processor time, for measuring on a busy machine.

Time in which other processes have the processor doesn't count. The time of all threads does, so
take one.

Run ``python benchmarks/cpu_clock.py bench inpainting --threads 1``.
"""

from __future__ import annotations

import time

from proxfield.cli.main import main

if __name__ == "__main__":
    time.perf_counter = time.process_time  # type: ignore[assignment]
    main()
