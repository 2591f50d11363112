"""The networks that all peers by PyTorch train: for each, what makes it, the shape of a sample, and how many classes there are."""

from torch import nn


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    )


def big():
    hidden = [layer for _ in range(4) for layer in (nn.Linear(8192, 8192), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(8192, 1000))


IMAGES = ((1, 28, 28), 10)
WORKLOADS = {"mlp": (mlp, *IMAGES), "cnn": (cnn, *IMAGES), "big": (big, (8192,), 1000)}
