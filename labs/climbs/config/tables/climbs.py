# The rest of a climb by left-to-right, any-order and masked models, against the exact truth:
#     python table.py config/tables/climbs.py --jobs=2
#     python table.py --measure=rest out/climbs/*-climbs-* --out=results/climbs.rest     # errors in ft/min
# The same table of recorded climbs (ADS-B): climbs_real.py
rows = ["baseline", "sigma_gpt", "sigma_gpt_random", "masked_diffusion"]
overlay = "climbs"
seeds = [1, 2, 3]
runs = "out/climbs"
measure = "orders"
evaluate = "--samplers --split=test"
