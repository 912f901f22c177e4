"""The training API for programs written for Horovod and SMDDP, over the same ops as the strategies.

One process is one rank. ``world`` has the group of this process, ``calls`` the collectives, ``gradients`` their
gradients, ``reducing`` the reduction of a list of tensors for tapes and optimizers. The names are those of Horovod;
``collectives.tensorflow`` exports them.
"""
