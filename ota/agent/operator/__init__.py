"""What an operator asks for at a device.

- `plan`: what a run would do. `by_hand`: roll back, retry, pause, resume. `repair`: damaged files of releases.
- `tell`: progress for a terminal or a journal.
"""
