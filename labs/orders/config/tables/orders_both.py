# What both sides are worth to a left-to-right model that tries all 4,096 tokens in a gap of one (Bayes' rule,
# exact), beside sigma_gpt, which is asked once: the trainings of orders_text, on a quarter of its windows, as
# each takes a left-to-right model 4,096 sequences. An hour and a quarter of a core.
#     python table.py config/tables/orders_both.py
rows = ["baseline", "sigma_gpt"]
overlay = "orders_text"
tuned = True
tuning = "results/orders_text.jsonl"
trials = 4
seeds = [2, 3, 4]
runs = "out/orders_text"
measure = "orders"
evaluate = "--split=test --windows=128 --gaps=[1] --tried --dtype=bfloat16"
