"""Generation orders: trunks that read a text in any order or fill in what is hidden, and how well they do."""

TRUNKS = ("any_order", "masked")  # that training/text.py finds here
