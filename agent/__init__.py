"""The search: given a problem, a model and a budget, the best candidate that can be found, with the record of how.

It asks a provider, takes the candidate out of the reply, hands it to the judge, and lets a strategy decide what to ask
next; every step is an event in an append-only log. It will not run candidate code, will not decide whether a candidate
is right or how fast it is (the sandbox's judge does), will not mend a candidate that a model got wrong, and will not
write a provider's key to disk.
"""
