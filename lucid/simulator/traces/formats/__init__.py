"""One module for each format of traces: its ``read`` reads one."""
