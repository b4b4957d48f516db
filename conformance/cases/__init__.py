"""Cases thought out by hand: what goes in, and what must come out. Nothing here asks tallymark."""
