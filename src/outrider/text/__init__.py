"""From token ids to text and back: the tokenizer, incremental detokenising, stop strings."""
