"""Supervision of the service: the watchdog, safe mode after repeated crashes, and self-inference.

command         says which models a server left out, and lets it load them again
crash_loop      which models are left out after the service has died again and again
facts           reads the watchdog's facts from the running server, and does what the inside can do about them
safe_mode       safe mode
self_inference  asks each model something now and then, when nobody else does, to find those that are dead and
standing        one line about all models, failed ones first
supervisor      the shell between the server and its service manager
watchdog        whether the service manager's watchdog is fed
"""
