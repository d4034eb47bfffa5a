"""People in several cameras: scenes, detections from occupancy maps, evaluation, a simulator."""
