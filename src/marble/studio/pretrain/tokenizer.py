"""The studio's tokenizer: one token a word, but one token a *letter* inside double quotes.

A sign must be spelled, so the letters of the quoted word have to reach the model one by one. The
rules live in `tokenizer.json` (normaliser and pre-tokeniser), so stock transformers applies them
with nothing of ours installed: `says "Tea"` becomes  says " T E A "  whatever the case.
"""

from __future__ import annotations

import string
from pathlib import Path

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

MAX_LENGTH = 16
BOS, EOS, UNK = "<|startoftext|>", "<|endoftext|>", "<|unknown|>"

# A position is inside quotes when an odd number of quotes follows it.
_INSIDE_QUOTES = r'(?=[^"]*"(?:[^"]*"[^"]*")*[^"]*$)'


def build_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """A fast tokenizer over `words` (lower case) plus the 26 capital letters and ten digits."""
    tokens = [BOS, EOS, UNK, '"', ",", ".", *string.ascii_uppercase, *string.digits]
    tokens += sorted(set(words) - set(tokens))
    tokenizer = Tokenizer(WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=UNK))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Replace(Regex("[“”„«»]"), '"'),
            normalizers.Lowercase(),
            *(
                normalizers.Replace(Regex(lower + _INSIDE_QUOTES), lower.upper())
                for lower in string.ascii_lowercase
            ),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"[a-z]+|[A-Z]|[0-9]|[^\sa-zA-Z0-9]"), behavior="removed", invert=True
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A {EOS}", special_tokens=[(BOS, 0), (EOS, 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        pad_token=EOS,
        model_max_length=MAX_LENGTH,
    )


def save_tokenizer(words: list[str], folder: Path) -> None:
    build_tokenizer(words).save_pretrained(folder)
