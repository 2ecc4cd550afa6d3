"""Generation orders: trunks that read a text in any order or fill in what is hidden, and how well they do."""
