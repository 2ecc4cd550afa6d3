# The same rows on the known language, against its exact two-sided truth, with what each sampler writes:
#     python table.py config/tables/orders.py config/tables/orders_grammar.py --jobs=2
name = "orders_grammar"
overlay = "orders"
evaluate = "--samplers"
