#!/usr/bin/env python3
"""The example `text` in PyTorch: the same text, model, initial distributions, optimizer and schedule.

    cargo run --release --example text -- --device cpu --json
    python3 examples/text/torch_twin.py --device cpu --threads 2

Prints a line for each epoch, then the result as a line of JSON. Random numbers differ, so the losses differ as they do
between two seeds.
"""

import argparse
import json
import math
import pathlib
import time

import torch
from torch import nn
from torch.nn import functional as F

PLAY = pathlib.Path(__file__).parent.parent / "data" / "as-you-like-it.txt"


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        split = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q, k, v = (split(layer(x)) for layer in (self.query, self.key, self.value))
        return self.output(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.dropout = Attention(width, heads), nn.Dropout(dropout)
        self.linear1, self.linear2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        hidden = self.dropout(F.gelu(self.linear1(self.norm2(x))))
        return x + self.dropout(self.linear2(hidden))


class Writer(nn.Module):
    def __init__(self, characters, context, width, heads, layers, dropout):
        super().__init__()
        self.character, self.position = nn.Embedding(characters, width), nn.Embedding(context, width)
        for embedding in (self.character, self.position):
            nn.init.normal_(embedding.weight, std=0.02)
        self.layers = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, codes):
        x = self.character(codes) + self.position.weight[: codes.shape[1]]
        return self.head(self.norm(self.layers(x)))


def loss_of(net, windows):
    return F.cross_entropy(net(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def evaluate(net, windows):
    net.eval()
    with torch.no_grad():
        total = sum(loss_of(net, part).item() * len(part) for part in windows.split(64))
    net.train()
    return total / len(windows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, default=PLAY)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=42)
    for name, value in {"epochs": 8, "batch": 32, "context": 64, "width": 128, "heads": 4, "layers": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=2e-3)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)

    text = options.text.read_text(encoding="utf-8")
    places = {c: place for place, c in enumerate(sorted(set(text)))}
    codes = torch.tensor([places[c] for c in text], device=options.device)
    learned = int(len(codes) * 0.9)
    train = codes[:learned].unfold(0, options.context + 1, max(options.context // 4, 1))
    test = codes[learned:].unfold(0, options.context + 1, options.context)

    net = Writer(len(places), options.context, options.width, options.heads, options.layers, options.dropout)
    net = net.to(options.device)
    rate, count = options.lr, len(train) // options.batch
    steps = options.epochs * count
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate)
    fall = lambda step: 0.1 + 0.9 * (1 + math.cos(math.pi * min(step / steps, 1))) / 2
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, fall)
    begin = time.perf_counter()
    for epoch in range(options.epochs):
        order = torch.randperm(len(train))
        losses = []
        for step in range(count):
            loss = loss_of(net, train[order[step * options.batch : (step + 1) * options.batch]])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
        test_loss = evaluate(net, test)
        print(f"epoch {epoch + 1:2}   loss {torch.stack(losses).mean().item():.4f}   test loss {test_loss:.4f}")
    seconds = time.perf_counter() - begin
    print(json.dumps({"framework": "pytorch", "test_loss": test_loss, "seconds": seconds, "steps": steps}))


if __name__ == "__main__":
    main()
