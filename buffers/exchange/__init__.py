"""Data sets for others: file formats, the card, and publishing."""
