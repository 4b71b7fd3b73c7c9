"""The server's log: lines of text or JSON on standard error or in a file, or entries of systemd's journal.

    file        writes lines to standard error or to the file of `--log-file`, in a thread
    journal     writes records to the journal, and decides when the journal is used
    limit       limits the rate of like lines
    log         levels, formats, and the change of both while the server runs
    native      the native protocol of journald, used where the library systemd-python is missing

Start reading in `log` for text, in `journal` for the journal.
"""
