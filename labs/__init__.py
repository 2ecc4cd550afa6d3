"""Labs: what nanoHeads can do beside text, a folder each. No file outside labs/ imports one.

What a lab has is found by its name. labs/LAB/prepare.py is the corpus of `dataset = "LAB"`, and
labs/LAB/NAME/prepare.py of `dataset = "NAME"`. labs/LAB/measure.py has the MEASURE of `--measure=LAB`, and
labs/LAB/NAME/measure.py of `--measure=NAME`. labs/LAB/heads.py has HEADS, labs/LAB/trunk.py has TRUNKS: dicts
of classes by the names that configurations have. labs/LAB/task.py has the TASK that trains on the DATASETS
or the TRUNKS that labs/LAB/__init__.py names. labs/LAB/scorer.py judges texts for `--scorer=PATH`
(tables/find.py), labs/LAB/columns.py has COLUMNS that rows of texts may have. config/x.py and
config/tables/x.py are found in labs/LAB/config/, too. labs/LAB/tests/ are its tests, README.md is its page.
Other files are programs of the lab's own. docs/add_a_lab.md makes a lab.
"""
