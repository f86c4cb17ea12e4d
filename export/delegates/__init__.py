"""ExecuTorch's delegates that take whole methods: Core ML and Vulkan. docs/delegates.md."""
