"""Writes torch.tfevents, with PyTorch 2.11 and TensorBoard 2.21: python3 make_events.py"""

import os
import tempfile

from torch.utils.tensorboard import SummaryWriter

with tempfile.TemporaryDirectory() as folder:
    w = SummaryWriter(folder)
    for step, value in enumerate([2.5, 1.25, 0.1]):
        w.add_scalar("loss/train", value, step, walltime=1700000000.5 + step)
    w.add_scalar("negative", -1e-30, 0x7FFFFFFF, walltime=1700000004)
    w.close()
    (name,) = os.listdir(folder)
    os.replace(os.path.join(folder, name), "torch.tfevents")
