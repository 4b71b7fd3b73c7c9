"""The agent: brings each bundle from the release that a fleet wants to the release that serves. Starts no thread.

- `line`: the straight line of an update, step by step. Start here. `parts`: what a line is given.
- `switch`: journal, links, and reload; and the way back. `recovery`: what a crash left is finished or undone.
- `boot`: the step before edge-serve starts. It needs no network and never fails the boot.
- `desired`: what the signed documents say that this device shall run. `gates`: what keeps a release out.
- `bookkeeping`: what each step leaves behind. `status_file`: the file that edge-serve reads.
- `compose`: the real parts, out of the settings: `this_device`, `identity`, `probation`, `building`.
- `operator/`: what an operator asks for at the device. `reports/`: what the publisher is told.
"""
