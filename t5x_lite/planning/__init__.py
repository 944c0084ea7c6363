"""What a run will take of chips that are not there."""
