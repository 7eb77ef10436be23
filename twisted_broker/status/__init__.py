"""What a person or a program may read about a running broker."""
