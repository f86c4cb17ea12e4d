"""`--backend xnnpack`: graphs of ExecuTorch's own operators, each half of a layer in one XNNPACK delegate."""
