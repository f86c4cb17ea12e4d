"""The kernels for torch.export: operators, packing of their weights, and slow, exact reference implementations."""
