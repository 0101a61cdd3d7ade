"""The receiver: event -> store -> acknowledge. Task results from Orbit in your own MySQL, each exactly once.

outcome, record, policy     pure: the words, the rows of an event, what follows which failure
schema, statements          the two tables and the SQL over them
store                       the one transaction
settle                      the loop round it until an event is decided
consume, demo               deliveries of the SDK through `settle`
settings, startup, install  what is checked before the first event; how the tables come to be
cli                         the commands
"""
