"""Programs beside the pages: house.py counts what the house is made of, gallery.py draws the heads."""
