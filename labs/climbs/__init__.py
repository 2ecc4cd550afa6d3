"""Climbs of aircraft as vertical rates: simulated ones whose truth is known, and recorded ones."""
