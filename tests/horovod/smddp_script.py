# A training script as users of SageMaker's data-parallel library have it: the steps of its documentation, on
# scikit-learn's digits. tests/horovod/test_smddp.py runs it with another import line; nothing here knows of that.
import argparse
import os

import numpy as np
import smdistributed.dataparallel.tensorflow as sdp
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=["dense", "embedding"], default="dense")
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--fp16", action="store_true", help="gradients travel as float16")
parser.add_argument("--mixed", action="store_true", help="mixed precision")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--own-seeds", action="store_true", help="ranks begin with different weights")
parser.add_argument("--out", required=True)
args = parser.parse_args()

sdp.init()

gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[sdp.local_rank()], "GPU")

tf.keras.utils.set_random_seed(args.seed + args.own_seeds * sdp.rank())
tf.keras.mixed_precision.set_global_policy("mixed_float16" if args.mixed else "float32")

images, labels = load_digits(return_X_y=True)
images, labels = images[:1600].astype("float32"), labels[:1600]
dataset = tf.data.Dataset.from_tensor_slices((images, labels))
dataset = dataset.shard(sdp.size(), sdp.rank()).repeat().batch(args.batch)

if args.model == "dense":
    first = [tf.keras.layers.Rescaling(1 / 16), tf.keras.layers.Dense(64, activation="relu")]
else:
    first = [tf.keras.layers.Embedding(17, 4), tf.keras.layers.Flatten()]
last = tf.keras.layers.Dense(10, dtype="float32", activation="softmax")
model = tf.keras.Sequential([tf.keras.Input((64,)), *first, last])
loss = tf.losses.SparseCategoricalCrossentropy()
opt = tf.optimizers.Adam(0.001 * sdp.size())
if args.mixed:
    opt = tf.keras.mixed_precision.LossScaleOptimizer(opt)
compression = sdp.Compression.fp16 if args.fp16 else sdp.Compression.none


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss(labels, probs)
        minimized = loss_value
        if args.mixed:
            minimized = opt.get_scaled_loss(loss_value)

    tape = sdp.DistributedGradientTape(tape, compression=compression)

    grads = tape.gradient(minimized, model.trainable_variables)
    if args.mixed:
        grads = opt.get_unscaled_gradients(grads)
    opt.apply_gradients(zip(grads, model.trainable_variables))  # noqa: B905

    if first_batch:
        sdp.broadcast_variables(model.variables, root_rank=0)
        sdp.broadcast_variables(opt.variables(), root_rank=0)

    return sdp.oob_allreduce(loss_value)


losses = []
for batch, (images, labels) in enumerate(dataset.take(args.steps)):
    loss_value = training_step(images, labels, batch == 0)
    losses.append(float(loss_value))
    if batch % 10 == 0 and sdp.rank() == 0:
        print(f"Step #{batch}\tLoss: {loss_value:.6f}")

np.savez(f"{args.out}-{sdp.tensorflow.rank()}.npz", np.array(losses), *[v.numpy() for v in model.trainable_variables])

checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)
if sdp.rank() == 0:
    checkpoint.save(os.path.join(args.out, "checkpoint"))

sdp.shutdown()
