"""The protocols of systemd: readiness and watchdog messages, socket activation, unit and environment files.

    activation        listening sockets that systemd holds for the server
    environment_file  the syntax of EnvironmentFile= (systemd.exec(5)), and the line that systemd would ignore
    notify            messages to systemd's socket (READY=1, STATUS=, WATCHDOG=1, ...), and how they are sent
    unit              edge-serve.service as systemd knows it

Nothing here is needed to serve: without systemd all of it is quiet. `supervision` decides what is sent.
"""
