"""The server's log: lines of text or JSON on standard error or in a file, or entries of systemd's journal.

    fields      a log record as the fields of a journal entry (systemd.journal-fields(7))
    file        writes lines to standard error or to the file of `--log-file`, in a thread
    handler     writes records to the journal, and decides when the journal is used
    like_lines  limits the rate of like warnings and errors in the text log
    limit       the rate limit of a group of like lines
    log         levels, formats, and the change of both while the server runs
    native      the native protocol of journald, used where the library systemd-python is missing

Start reading in `log` for text, in `handler` for the journal.
"""
