"""RLDS episodes in the files of TensorFlow Datasets, written without TensorFlow."""
