# Which head recovers the truth: the rows of heads.py on the known language.
# python table.py config/tables/heads.py config/tables/grammar.py
name = "grammar"
overlay = "grammar"
evaluate = "--prompt_tokens=28 --new_tokens=100"
