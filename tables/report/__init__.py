"""Tables and runs as one page of the web that needs no network: tables.py and runs.py say what is on it,
page.py and the files beside it how it looks."""
