"""What tallymark is tested with, and what a store's author may test with too. Nothing here is needed to train."""
