"""The target ExecuTorch: model.pte with all methods, weights stored once. Each backend is a `target.PteTarget`."""
