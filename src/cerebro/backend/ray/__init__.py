"""Workers as actors of Ray, states as objects of its store."""
