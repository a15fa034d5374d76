"""Benchmarks: what emulation costs in time and memory, beside plain PyTorch on the same machine."""
