"""The command line: every command parses, calls one function of the library, and renders what it returns.

It is the only package that prints or chooses exit codes; start at ``app.app``, which has the commands.
"""
