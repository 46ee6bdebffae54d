"""Small things that example workflows use."""
