"""From a BF16 drafter to affine Q8, byte for byte as published, with NumPy and no torch.

Read `quantize.py` for the arithmetic, `layout.py` for what lies where in the two files,
`convert.py` for the pipeline between them, and `cache.py` for when that pipeline has to run.
"""
