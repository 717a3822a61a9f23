"""Training: examples, a tokenizer for them, packed rows, objectives, and the loop that minimises them."""
