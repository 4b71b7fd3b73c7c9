"""Pure decisions about workers; time is an argument. `front/worker` acts on them.

restart  decides when a dead worker is restarted
stalls   measures how long each watched counter has been unchanged
"""
