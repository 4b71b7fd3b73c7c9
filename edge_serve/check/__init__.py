"""The commands `check` and `check-config`: would these models load, and would the service start with these settings?

command  is every model servable, and where it is not, which line to change
config   would the service start with the settings and files as they are now (as `nginx -t`)?
files    checks of what the settings name
golden   compares the answers of a loaded model, and judges its latency and its memory
infer    sends one request to each loaded model, and compares the answer with its configuration
record   records what a loaded model answers as its golden test
"""
