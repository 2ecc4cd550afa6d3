"""Classifiers of images: the classes are the vocabulary, an image is the context."""

DATASETS = ("digits", "mnist", "cifar10", "cifar100")  # that training/text.py finds here
