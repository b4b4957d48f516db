"""Stores: bytes and keys. Nothing here knows what the keys mean."""
