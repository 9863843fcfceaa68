"""What devices, precisions and kernels are called; without torch, for which the command line's help does not wait."""

DEVICES = ("auto", "cuda", "mps", "cpu")
PRECISIONS = ("auto", "bf16", "tf32", "fp32")
KERNELS = ("measure", "known", "together", "loop", "product", "winograd", "branches")
