"""ONNX graphs for ONNX Runtime: one file per method, one file of weights. See docs/targets.md."""
