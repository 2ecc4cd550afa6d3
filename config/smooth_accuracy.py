# Softmax trained on -p_t, for fine-tuning: --init_from=out/baseline, and a learning_rate to suit.
head = "smooth_accuracy"
