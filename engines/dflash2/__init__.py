"""A readable PyTorch engine for DFlash 2: a qwen3 target, a block-diffusion drafter, one loop.

Read `decode.py` first; it is the paper's algorithm. Token ids in, token ids out: text, HTTP and
scheduling live in modules built on top of it.
"""
