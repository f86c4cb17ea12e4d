"""What the kernels look like to torch.export: the operators, their packed weights and their slow, exact forms."""
