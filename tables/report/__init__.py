"""Tables as one page of the web that needs no network: tables.py says what is on it, page.py and the files
beside it how it looks."""
