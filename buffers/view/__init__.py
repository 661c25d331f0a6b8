"""Looking at stores: what the viewer, reports and clips show."""
