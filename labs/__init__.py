"""Labs: what nanoHeads can do beside text, a folder each. No file outside labs/ imports one.

A lab is found by its name: labs/NAME/prepare.py is the corpus of `dataset = "NAME"`, and labs/NAME/measure.py
the measure of `--measure=NAME`. Its other files are programs of its own.
"""
