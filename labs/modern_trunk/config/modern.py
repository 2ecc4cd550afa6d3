# Overlay: the trunk of today's small models, with an output projection of its own.
# python train.py config/baseline.py config/brief.py config/modern.py
trunk = "modern"
tied = False
