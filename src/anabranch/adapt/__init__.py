"""When to change the plan of a running query: what was seen, who suggests, what must be won, what was decided.

A pure room: no clock, no files, no Spark, no engine. A host tells it what each batch was like and is told, now and
then, to migrate; everything it decides, also to leave things as they are, is a `Decision` that explains itself. The
timing rules are those of Zhu 2006, section 26.1; the ratio, the amount, the pay-back and the cool-down of the gate are
what keeps them from thrashing.
"""
