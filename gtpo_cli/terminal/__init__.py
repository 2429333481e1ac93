"""What a person sees at the terminal, and how a program ends."""
