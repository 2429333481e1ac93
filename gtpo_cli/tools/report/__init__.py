"""Write pages, charts and tables about finished runs, without torch."""
