"""LeRobot's datasets."""
