"""The kernel set "cuda": programs on an NVIDIA GPU, in Triton."""
