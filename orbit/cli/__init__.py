"""The command `orbit`: what people do to tasks, queues and subscriptions, over the SDK; and the server's own commands.

stdout is data: one line an object, `name=value` or, with --json, one JSON object. stderr is for people. The exit code
is 0, or 1 when the platform refused or could not be asked, or 2 for a command or a setting that is wrong, before
anything is sent.
"""
