"""Supervision of the service: the watchdog, safe mode after repeated crashes, and self-inference.

command         says which models a server left out, and lets it load them again
crash_loop      decides which models are left out after repeated crashes (pure)
safe_mode       the start without the models that crashed the service again and again
self_inference  sends a sample request to idle models, to detect a lost device context
supervisor      the shell between the server and its service manager
watchdog        reads the facts that the watchdog depends on, and decides whether systemd's watchdog is fed
"""
