"""A dense target and its DFlash 2 drafter as GGUF files, so that llama.cpp runs the same weights.

Read `names.py` for what each tensor is called there, `vocabulary.py` for the tokenizer, and
`export.py` for how the two become a file. Needs the extra `gguf`.
"""
