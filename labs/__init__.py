"""Labs: what nanoHeads can do beside text, a folder each. No file outside labs/ imports one.

What a lab has is found by the lab's name. labs/NAME/prepare.py is the corpus of `dataset = "NAME"`,
labs/NAME/measure.py has the MEASURE of `--measure=NAME`, and labs/NAME/trunk.py the TRUNK of
`trunk = "NAME"`. labs/NAME/task.py has the TASK that trains on the DATASETS of labs/NAME/__init__.py, which
are no tokens. Other files are programs of the lab's own. docs/add_a_lab.md makes a lab.
"""
