"""The command line: one file a group of commands. Heavy imports happen inside the commands."""
