"""The journal of systemd as the log: structured fields instead of lines of text.

`fields` makes an entry of a log record, `native` (or the library systemd-python) sends it, `limit` keeps one noisy kind
of line from burying the others, `handler` joins them (all imported only when standard error is the journal,
`handler.find_journal`). `like_lines` sets the same limit for the text log. Start reading in `handler`.
"""
