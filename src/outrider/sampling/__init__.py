"""From logits to a token, and from a verdict to what is kept: noise, shaping, the coupled pick, stops and limits."""
