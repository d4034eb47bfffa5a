"""People in several cameras: scenes, detections from occupancy maps, evaluation, a simulator."""

COMPILING = "occupancy maps", 15
"""What the kernels are for, and seconds that all of a first call take."""
