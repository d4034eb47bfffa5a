"""How proxfield compiles with numba, and the compiled helpers that all kernels share."""
