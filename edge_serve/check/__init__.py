"""The commands `check` and `check-config`: would these models load, and would the service start with these settings?

command  loads each model and reports which line to change
config   checks settings and files, as `nginx -t` does
engine   describes the engine of a TensorRT plan, or the file beside it
files    checks of the files, directories, sockets and addresses that settings name
golden   runs a model's golden test and judges its latency and memory, or records the test
infer    sends each model a request, and compares the response with its configuration
"""
