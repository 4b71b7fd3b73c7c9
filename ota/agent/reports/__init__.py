"""The reports of this device.

reporter  makes, signs, and sends reports
progress  describes the progress of a bundle in the words of hawkBit's DDI
outbox    stores the reports that wait to be sent, and their counter
"""
