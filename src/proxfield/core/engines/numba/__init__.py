"""The kernel set "cpu": programs compiled with numba."""
