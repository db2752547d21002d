"""`pld`: certified lower and upper bounds on epsilon, from the distribution of the privacy loss."""
