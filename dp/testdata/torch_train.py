"""Trains what TestCardAgainstTorch trains, from the same values on the same batches, in exact float32.

Arguments: mlp or cnn, the learning rate, and a folder with start.safetensors (the parameters) and batches.safetensors (x and y, one batch
after the other). For each step it writes to standard output the loss, as it was before the update, and then all parameters after it in the
order of their names, as float32. At the end it writes end.safetensors.
"""

import sys

try:
    import torch
    from safetensors.torch import load_file, save_file
    from torch import nn
except ImportError as missing:
    sys.exit(f"no {missing.name}")

NETS = {
    "mlp": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    ),
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    ),
}

net, rate, folder = sys.argv[1:]
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.deterministic = True

model = NETS[net]()
model.load_state_dict(load_file(f"{folder}/start.safetensors"))
model.cuda()
batches = load_file(f"{folder}/batches.safetensors")
optimizer = torch.optim.SGD(model.parameters(), lr=float(rate), momentum=0.9)
out = sys.stdout.buffer
for x, y in zip(batches["x"].cuda(), batches["y"].long().cuda()):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    out.write(loss.detach().cpu().numpy().tobytes())
    for _, p in sorted(model.state_dict().items()):
        out.write(p.cpu().contiguous().numpy().tobytes())
out.flush()
save_file({name: p.cpu().contiguous() for name, p in model.state_dict().items()}, f"{folder}/end.safetensors")
