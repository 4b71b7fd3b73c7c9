"""This device: `identity` has its key, in a file or (`token`) on a token; `this_device` its name and its facts."""
