"""Who chooses the actions, how they are asked, and what state they have."""
