"""The training API: what programs for Horovod and SMDDP call, over the ops that the strategies use.

One process is one rank. ``world`` has the group of this process, ``calls`` the collectives, ``gradients`` their
gradients, ``reducing`` what tapes and optimizers do with a list of gradients. Its names are those of Horovod, which its
users have in their scripts; ``collectives.tensorflow`` exports them.
"""
