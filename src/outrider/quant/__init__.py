"""Number formats of checkpoints and of simulated activations: ue8m0 scales, FP8 (e4m3) and FP4 (e2m1).

Pure functions on torch tensors; nothing here keeps state or knows what a model is.
"""
