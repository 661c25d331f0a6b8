"""The viewer's server: stores in a browser, for the user who started it alone."""
