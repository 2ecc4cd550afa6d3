# The heads once through a text of some 6M tokens, a folder of text files, at the points that 1,000 steps on
# WikiText-103's head were tuned to:
# python table.py config/tables/heads.py config/tables/heads_once.py \
#     --flags="--dataset=text --source=DIR --max_steps=5600 --eval_interval=700"
name = "heads_once"
flags = "--dataset=text --max_steps=5600 --eval_interval=700"
tuning = "results/heads.jsonl"
seeds = [2, 3, 4]
runs = "out/heads_once"
