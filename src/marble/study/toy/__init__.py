"""A toy world for studies on a CPU: 12 numbers in place of a picture, everything else as it is.

The loop, the loss, the balance, the checkpoints and the evaluation are those of `marble train`;
only the model is 12-dimensional, so that a run takes seconds and a study can afford many seeds.
What holds here need not hold for pictures: it says where to look.
"""
