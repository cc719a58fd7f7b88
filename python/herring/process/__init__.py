"""What the core asks of the interpreter around it: its log, and where the program is."""
