"""Watching workers: which ones hang, and when one that died is started again. Pure; time is an argument.

hangs    finds instances whose model hangs
restart  when a worker that died is started again
stalls   how long each watched counter has been unchanged
"""
