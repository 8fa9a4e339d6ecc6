"""Losses of whole trainings: <model>/state/<name> is what training begins with, <model>/x and /y are the data, /losses
what each of 50 steps found and /after/<name> what it ended with."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from cases import Inputs

STEPS = 50


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.Conv2d(4, 6, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x))), 2)
        return self.head(F.gelu(self.conv2(x)).mean((2, 3)))


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.lstm = nn.LSTM(6, 8)
        self.attention = nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, dropout=0.0, norm_first=True)
        self.head = nn.Linear(8, 7)

    def forward(self, x):
        x = self.lstm(self.embedding(x))[0]
        mask = torch.triu(torch.ones(len(x), len(x), dtype=torch.bool), 1)
        return self.head(self.attention(x, mask))


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x)


class Digits(nn.Module):
    """That of examples/digits_cnn.cpp, smaller and without dropout."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(8 * 3 * 3, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Gpt(nn.Module):
    """That of examples/char_gpt.cpp, smaller and without dropout."""

    def __init__(self, vocabulary=11, length=12, width=16):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, 2, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x):
        mask = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
        return self.head(self.body(self.tokens(x) + self.places(torch.arange(x.shape[1])), mask))


def curve(file, key, model, batches, loss_of, make, schedule=None):
    torch.manual_seed(1)
    for m in model.modules():
        if hasattr(m, "reset_parameters"):
            m.reset_parameters()
    model = model.double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((p * 1024).round() / 1024)  # the same in f32
    for name, t in model.state_dict().items():
        file.put(f"{key}/state/{name}", t.float() if t.is_floating_point() else t)
    optimizer = make(model.parameters())
    scheduler = schedule(optimizer) if schedule else None
    losses = []
    for step in range(STEPS):
        x, y = batches[step % len(batches)]
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if scheduler:
            scheduler.step()
        losses.append(loss.detach())
    file.put(f"{key}/losses", torch.stack(losses))
    file.put(f"{key}/x", torch.stack([x for x, _ in batches]))
    file.put(f"{key}/y", torch.stack([y for _, y in batches]))
    for name, t in model.state_dict().items():
        file.put(f"{key}/after/{name}", t)


def fill(file):
    r = Inputs("curves")
    batches = [(r.real(6, 1, 8, 8), r.integer(6, low=0, high=2)) for _ in range(3)]
    curve(file, "pictures", Pictures(), batches, F.cross_entropy, lambda p: torch.optim.Adam(p, lr=0.01))
    batches = [(ids[:-1], ids[1:]) for ids in (r.integer(7, 4, low=0, high=6) for _ in range(3))]
    loss = lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten(), label_smoothing=0.1)
    sgd = lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, nesterov=True, weight_decay=1e-3)
    cosine = lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, STEPS)
    curve(file, "letters", Letters(), batches, loss, sgd, cosine)
    batches = [(x, (x[:, :1] * x[:, 1:2]).sin()) for x in (r.real(8, 5) for _ in range(2))]
    adamw = lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1, amsgrad=True)
    curve(file, "rows", Rows(), batches, F.smooth_l1_loss, adamw)
    batches = [(r.real(8, 1, 12, 12, low=0, high=1), r.integer(8, low=0, high=9)) for _ in range(3)]
    adamw = lambda p: torch.optim.AdamW(p, lr=5e-3, weight_decay=0.01)
    cycle = lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 5e-3, total_steps=60, cycle_momentum=False)
    curve(file, "digits", Digits(), batches, F.cross_entropy, adamw, cycle)
    batches = [(ids[:, :-1], ids[:, 1:]) for ids in (r.integer(4, 13, low=0, high=10) for _ in range(3))]
    loss = lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten())
    adamw = lambda p: torch.optim.AdamW(p, lr=5e-3, betas=(0.9, 0.99), weight_decay=0.01)
    rate = lambda i: min(1.0, (i + 1) / 5) * (0.1 + 0.9 * (1 + math.cos(math.pi * min(i, STEPS) / STEPS)) / 2)
    curve(file, "gpt", Gpt(), batches, loss, adamw, lambda o: torch.optim.lr_scheduler.LambdaLR(o, rate))
