"""The process and its service manager: what it is told, what it hands over, and when it should start us again.

    supervisor  the shell: a task that looks at the server once a second and tells what it sees
    notify      messages to the manager's socket (READY=1, STATUS=, WATCHDOG=1, ...) and how they get there
    standing    in what words: the status line, and whether the service counts as started (pure)
    watchdog    whether the watchdog is fed (pure), and how long nothing has moved (`stalls`, pure)
    activation  listening sockets that the manager holds for us
    crash_loop  which models are left out after the service has died again and again (pure), and the file it knows from
    faults      what tests break on purpose

Nothing here is needed to serve: without a manager all of it is quiet. May import every lower layer. Start reading in
`supervisor`; docs/supervision.md tells users what is watched.
"""
