"""What a run costs, before it runs: memory, operations, time.

What shapes tell at once is in `analytic`; what is refused for want of memory,
by it, in `fitting`.
"""
