"""The schedule of an ensemble: which steps a request needs, and which of them may run now.

plan    the plan of an ensemble
stream  what runs next in an ensemble with decoupled members
"""
