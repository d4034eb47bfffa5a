"""The engine "cuda": programs on an NVIDIA GPU, in Triton."""
