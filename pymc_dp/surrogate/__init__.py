"""Released approximations of the log-likelihood, in three families: normal, hierarchical, polynomial."""
