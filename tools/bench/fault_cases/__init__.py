"""The cases of `./dev bench faults`, one family a file."""
