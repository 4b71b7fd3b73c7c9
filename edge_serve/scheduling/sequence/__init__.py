"""The sequence batcher: sequences, their slots, and the strategies `direct` and `oldest`. Start reading in `sequences`.

direct     the strategy `direct`
oldest     the strategy `oldest`
sequence   one sequence, and the timers of sequences
sequences  the common part of both strategies: open sequences, slots, backlog, and timeouts
slots      assigns sequences to slots of instances
"""
