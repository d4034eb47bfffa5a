"""The engine "cpu": programs compiled with numba."""
