"""The agent: brings each bundle from the release that a fleet wants to the release that serves. Starts no thread.

- `line`: the straight line of an update, step by step. Start here. `parts`: what a line is given.
- `switch`: journal, links, and reload; and the way back. `recovery`: what a crash left is finished or undone.
- `boot`: the step before edge-serve starts. It needs no network and never fails the boot.
- `status_file`: the file that edge-serve reads. `tell`: progress for a terminal or a journal.
- `compose`: the real parts, out of the settings.
"""
