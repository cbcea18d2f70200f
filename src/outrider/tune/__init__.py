"""Training a tiny V4 with its draft head: ``run.train`` is the way in.

data → tokenizer_training → initial → trainer (trunk and head together; losses, optim, shards) → distill (the head
alone, over whole draft rounds; owntext, chain) → measure → export. The model itself: forward, attention, moe, context,
over the hand-written backward passes of ``grad``; fake and stored say how values look once quantised.
"""
