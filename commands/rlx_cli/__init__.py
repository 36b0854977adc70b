"""The command line: parse, call one function of the library, render."""
