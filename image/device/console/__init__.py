"""The console of the device: its name, addresses, versions, and faults on the screen and the serial line.

service    draws the terminals, and writes the status file
screen     makes the text of a status document
terminals  writes to the terminals
changes    waits for changes
clock      looks whether the clock was ever set
"""
