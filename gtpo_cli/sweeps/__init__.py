"""Many runs of a recipe: variants, seeds, and what the differences between them are worth."""
