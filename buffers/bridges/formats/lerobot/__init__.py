"""LeRobot's data sets, version 3.0, written without LeRobot."""
