"""The command line outside the server: the list of commands with its help texts, and the parser of their options.

Start reading in `help`. `cli` calls this room; each command that is more than a few lines has a room of its own.

    build    makes TensorRT plans from ONNX on this device
    check    the options of the command, its report for people or programs, and the check as another user
    help     help for the program as a whole
    options  parser of a command's options
    token    adds a bearer token to a file of tokens, and prints it
"""
