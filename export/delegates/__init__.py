"""ExecuTorch's delegates that take whole methods: Core ML, Vulkan, and Qualcomm's QNN. docs/delegates.md."""
