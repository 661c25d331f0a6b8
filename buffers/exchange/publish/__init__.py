"""Stores to and from the Hugging Face Hub and object stores."""
