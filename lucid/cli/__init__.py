"""The command line, lucidctl."""
