# Softmax trained by its gradient alone, p - onehot, for fine-tuning: --init_from=out/baseline
# --head_args.of=taylor trains another map.
head = "stop_gradient"
head_args = {"of": "softmax"}
