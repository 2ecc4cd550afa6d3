# The rows of mnist.py with a hundredth of the arithmetic and a twentieth of the epochs: hours on a core.
#     python classify_table.py config/tables/mnist.py config/tables/mnist_brief.py --flags=--source=DIR
# Each row at the best of five gains: the same with --name=mnist_brief_tuned --gains=0.5,1,2,4,8
name = "mnist_brief"
config = "mnist_brief"
