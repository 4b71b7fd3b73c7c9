"""The sequence batcher: sequences, their slots, and the strategies `direct` and `oldest`.

clocks     when sequences must be looked at again
direct     the strategy `direct`
oldest     the strategy `oldest`
sequence   one sequence
sequences  what both sequence batchers do
slots      the seats for sequences
"""
