# Climbs of ADS-B records. The steps are those at which each row was best on the validation split of traffic's
# sample of one day (seed 9, 2,000 steps): with more of them a model learns so few climbs by heart.
# python table.py config/tables/climbs.py config/tables/climbs_real.py --flags=--source=FILE
# python table.py --measure=rest out/climbs_real/*-climbs-* --out=results/climbs_real.rest
rows = [
    "baseline --max_steps=200",
    "sigma_gpt --max_steps=700",
    "sigma_gpt_random --max_steps=1000",
    "masked_diffusion --max_steps=2000",
]
flags = "--source=FILE"  # where yours is, the command line says
name = "climbs_real"
runs = "out/climbs_real"
evaluate = "--split=test"
