"""Train variants of a recipe with several seeds, and estimate their differences."""
