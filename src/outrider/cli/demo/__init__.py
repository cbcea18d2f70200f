"""``outrider demo``: the job in three parts (same text, the promise, acceptance and speed), and the sabotage."""
