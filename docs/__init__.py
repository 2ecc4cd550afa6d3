"""The documentation. build.py writes README.md and docs/*.md from templates/, with the numbers filled in."""
