"""The demo pair's tokenizer: byte-level BPE with GPT-2's pre-tokenizer and ChatML's special tokens.

Digits never merge: the merges are learned from text without digits, so numbers are written digit
by digit.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from engines.demo.train.corpus.document import Document

END_OF_TEXT, TURN_START, TURN_END, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"
SPECIAL = (END_OF_TEXT, TURN_START, TURN_END, MASK)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}"
    "{% if not loop.last or add_generation_prompt %}{{ '\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((re.sub(r"\d+", " ", text) for text in texts), trainer)
    return tokenizer


def question(document: Document) -> str:
    """The document up to where the answer begins, as the chat template writes it."""
    return f"{TURN_START}user\n{document.user}{TURN_END}\n{TURN_START}assistant\n"


def answer(document: Document) -> str:
    """The answer with its end-of-turn and end-of-text tokens."""
    return f"{document.answer}{TURN_END}{END_OF_TEXT}"


def save(tokenizer: Tokenizer, directory: Path) -> None:
    """Write tokenizer.json and the tokenizer_config.json that transformers and servers read."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "additional_special_tokens": [TURN_START, MASK],
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2) + "\n"
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")
