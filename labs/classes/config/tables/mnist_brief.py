# The rows of mnist.py with a hundredth of the arithmetic and a twentieth of the epochs: hours on a core.
#     python table.py config/tables/mnist.py config/tables/mnist_brief.py --flags=--source=DIR
# Each row at the best of eight gains: --name=mnist_brief_tuned --trials=8 --search, and then --tuned
name = "mnist_brief"
overlay = "mnist_brief"
