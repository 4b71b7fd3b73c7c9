"""The journal of systemd as the log: structured fields instead of lines of text.

`fields` makes an entry of a log record, `native` (or the library systemd-python) sends it, `limit` keeps one noisy kind
of line from burying the others, `handler` joins them (all imported only when standard error is the journal,
`handler.find_journal`). `like_lines` sets the same limit for the text log. Start reading in `handler`.

    fields      a log record as the fields of a journal entry (systemd.journal-fields(7))
    file        the lines of the log, to standard error or to the file that `--log-file` names
    handler     the handler of `logging` that writes to the journal, and when it is used
    like_lines  rate limit for like warnings and errors in the text log, with the rules of the journal's handler
    limit       rate limit for each group of like lines, so that one noisy kind does not bury the others
    log         the server's log
    native      journald's own protocol
"""
