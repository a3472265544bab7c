"""Trains a small Llama from scratch to recall facts over 8,192 tokens.

    train.py TEXTS OUT [--until STAGE]

TEXTS holds the three texts that data.py names; OUT receives tokenizer.json, train.log and checkpoint.pt.
Started again with the same OUT it goes on where the checkpoint was written.

Rows are short at first and then longer and longer; half of them have positions that jump ahead, so that short
rows show distances of up to 8,192.
"""
import argparse
import math
import os
import time
from collections import namedtuple

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import data
import model as net

SEED, BETAS, DECAY, WARMUP, TEXT_WEIGHT, TEXT_KEPT, FIRST_WEIGHT = 20, (0.9, 0.98), 0.05, 50, 0.2, 0.125, 3.0
EMBEDDING_RATE = 2.5    # learning rate of what is no matrix of a block, over the others'
REPORT = 25         # steps between lines of the log
SAVE_SECONDS = 60

# Caches of four bits round a key by a tenth of how far it lies from the mean key (docs/numerics.md).
KEY_NOISE = 0.12

Stage = namedtuple("Stage", [
    "length", "rows",               # of a step, and how many
    "first_rate", "last_rate",      # learning rate at the beginning and at the end
    "level",                        # of the data
    "lists",                        # share of the rows that ask for lists alone
    "common",                       # share of those whose keys are words of the filler
    "noise",                        # of keys in attention
    "steps",
    "four_bits",                    # whether attention sees keys as a cache of four bits keeps them
    "alone",                        # share of the rows of lists whose documents have one question each
], defaults=[False, 0])

STAGES = [
    Stage(256, 16, 5e-4, 5e-4, 0, 0, 0, 0, 1150),
    Stage(512, 8, 4e-4, 4e-4, 0, 0, 0, 0, 200),
    Stage(1024, 4, 3e-4, 3e-4, 0, 0, 0, 0, 150),
    Stage(2048, 2, 2e-4, 2e-4, 0, 0, 0, 0, 80),
    Stage(4096, 1, 3e-4, 0, 0, 0, 0, 0, 220),
    Stage(256, 16, 6e-4, 6e-4, 1, 0, 0, 0, 2000),
    Stage(1024, 4, 4e-4, 4e-4, 1, 0, 0, 0, 300),
    Stage(4096, 1, 3e-4, 0, 1, 0, 0, 0, 300),
    Stage(1024, 4, 4e-4, 3e-4, 1, 0.6, 0, 0, 210),
    Stage(4096, 1, 3e-4, 0, 1, 0.6, 0, 0, 130),
    Stage(1024, 4, 4e-4, 3e-4, 1, 0.7, 0, 0, 480),
    Stage(4096, 1, 3e-4, 0, 1, 0.6, 0, 0, 150),
    Stage(256, 16, 6e-4, 6e-4, 1, 0.3, 0, 0, 300),
    Stage(1024, 4, 5e-4, 4e-4, 2, 0.25, 0, 0, 900),
    Stage(1024, 4, 5e-4, 3e-4, 2, 0.5, 0, 0, 1400),
    Stage(4096, 1, 4e-4, 1.5e-4, 2, 0.4, 0, 0, 400),
    Stage(8192, 1, 1.5e-4, 0, 2, 0.4, 0, 0, 140),
    Stage(1024, 4, 4e-4, 3e-4, 2, 0.35, 0, 0, 1200),
    Stage(4096, 1, 3e-4, 1.2e-4, 2, 0.35, 0, 0, 420),
    Stage(8192, 1, 1.2e-4, 0, 2, 0.35, 0, 0, 100),
    Stage(1024, 4, 4e-4, 3e-4, 2, 0.25, 0.35, KEY_NOISE, 1000),
    Stage(4096, 1, 3e-4, 1.2e-4, 2, 0.25, 0.35, KEY_NOISE, 400),
    Stage(8192, 1, 1.2e-4, 0, 2, 0.25, 0.35, KEY_NOISE, 100),
    Stage(1024, 4, 3e-4, 2e-4, 2, 0.35, 0.3, 0, 450, four_bits=True),
    Stage(4096, 1, 2e-4, 1e-4, 2, 0.35, 0.3, 0, 150, four_bits=True),
    Stage(8192, 1, 1e-4, 0, 2, 0.35, 0.3, 0, 45, four_bits=True),
    Stage(1024, 4, 4e-4, 2.5e-4, 2, 0.4, 0.25, 0, 1000, four_bits=True),
    Stage(4096, 1, 2.5e-4, 1e-4, 2, 0.4, 0.25, 0, 300, four_bits=True),
    Stage(8192, 1, 1e-4, 0, 2, 0.4, 0.25, 0, 80, four_bits=True),
    Stage(1024, 4, 4e-4, 2e-4, 2, 0.5, 0.25, 0, 500, four_bits=True, alone=0.6),
    Stage(4096, 1, 2e-4, 1e-4, 2, 0.5, 0.25, 0, 150, four_bits=True, alone=0.6),
    Stage(8192, 1, 1e-4, 0, 2, 0.5, 0.25, 0, 50, four_bits=True, alone=0.6),
    Stage(1024, 4, 4e-4, 2e-4, 2, 0.5, 0.25, 0, 650, four_bits=True, alone=0.4),
    Stage(4096, 1, 2e-4, 1e-4, 2, 0.5, 0.25, 0, 150, four_bits=True, alone=0.3),
    Stage(8192, 1, 1e-4, 0, 2, 0.5, 0.25, 0, 60, four_bits=True, alone=0.3),
    Stage(1024, 4, 4e-4, 2e-4, 2, 0.5, 0.25, 0, 550, four_bits=True, alone=0.5),
    Stage(4096, 1, 2e-4, 1e-4, 2, 0.5, 0.25, 0, 150, four_bits=True, alone=0.4),
    Stage(8192, 1, 1e-4, 0, 2, 0.5, 0.25, 0, 60, four_bits=True, alone=0.4),
]

ALONE = (200, 1000)     # tokens of a document with one question
COMMON = [["multikey"], ["multikey"], ["single"], ["multikey", "passkey"], ["multivalue"]]   # what those ask


def batch(rows, stage, step):
    """The rows of a step: they depend only on the seed and the step."""
    of = STAGES[stage]
    rng = rows.rng
    rng.seed(f"{SEED} {stage} {step}")
    made = []
    for _ in range(of.rows):
        plan = {"families": ["multivalue"]} if of.lists and rng.random() < of.lists else {}
        if of.alone and plan and rng.random() < of.alone:
            plan["alone"] = ALONE
        if of.common and not plan and rng.random() < of.common / (1 - of.lists):
            plan = {"families": rng.choice(COMMON), "filler": "text", "common": True}
        made.append(rows.row(of.length, of.level, net.CONTEXT if rng.random() < 0.5 else 0, **plan))
    ids, positions = (torch.stack([torch.from_numpy(m[i]) for m in made]) for i in range(2))
    spans = [m[2] for m in made]
    weights = torch.zeros(ids.shape[0], ids.shape[1] - 1)
    for row, places in enumerate(spans):
        for _, first, end, _ in places:     # to find the answer is harder than to go on with it
            weights[row, first - 1:end - 1] = 1.0
            weights[row, first - 1:min(first + 1, end - 1)] = FIRST_WEIGHT
    return ids, weights, positions, spans


def loss_and_hits(model, ids, weights, positions, spans, generator):
    """Weighted loss of answers and of a sample of the text; per family, how many answers were right throughout."""
    hidden = model.hidden(ids[:, :-1], positions)
    answers = weights > 0
    kept = answers | (torch.rand(answers.shape, generator=generator) < TEXT_KEPT)
    logits = model.logits(hidden[kept]).float()
    target = ids[:, 1:][kept]
    weight = weights[kept].clamp(min=TEXT_WEIGHT)
    loss_each = F.cross_entropy(logits, target, reduction="none")
    good = logits.argmax(-1) == target
    index = torch.zeros(answers.shape, dtype=torch.long)
    index[kept] = torch.arange(len(target))
    several = [(index[row, first - 1 + i].item(), tokens) for row, places in enumerate(spans)
               for _, first, _, choices in places for i, tokens in enumerate(choices or []) if len(tokens) > 1]
    if several:
        most = max(len(tokens) for _, tokens in several)
        at = torch.tensor([i for i, _ in several])
        tokens = torch.tensor([t + t[:1] * (most - len(t)) for _, t in several])
        spare = torch.arange(most) >= torch.tensor([len(t) for _, t in several])[:, None]
        of_choice = logits[at].log_softmax(-1).gather(1, tokens).masked_fill(spare, -math.inf).logsumexp(-1)
        loss_each = loss_each.index_copy(0, at, -of_choice)
        good[at] = (tokens == logits[at].argmax(-1, keepdim=True)).any(-1)
    loss = (loss_each * weight).sum() / weight.sum()
    right = torch.ones_like(answers)
    right[kept] = good
    hits = {}
    for row, places in enumerate(spans):
        for family, first, end, _ in places:
            good, asked = hits.get(family, (0, 0))
            hits[family] = (good + int(right[row, first - 1:end - 1].all()), asked + 1)
    return loss, hits


def optimizers(model):
    """Muon for the matrices inside the blocks, AdamW for the rest."""
    inner = [p for p in model.blocks.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if not any(p is q for q in inner)]
    return [torch.optim.Muon(inner, lr=1e-3, weight_decay=DECAY, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=1e-3, weight_decay=0.0, betas=BETAS)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("texts")
    parser.add_argument("out")
    parser.add_argument("--until", type=int, default=len(STAGES), help="stop before this stage")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(SEED)
    torch.set_num_threads(int(os.environ.get("THREADS", os.cpu_count())))
    torch.set_flush_denormal(True)

    texts = data.read_texts(args.texts)
    tokenizer_file = os.path.join(args.out, "tokenizer.json")
    if not os.path.exists(tokenizer_file):
        data.train_tokenizer(texts, net.VOCABULARY, SEED).save(tokenizer_file)
    rows = data.Rows(Tokenizer.from_file(tokenizer_file), texts, SEED)
    model = net.Recall(rows.encode(data.MARK)[0])
    optims = optimizers(model)
    state = {"stage": 0, "step": 0, "total": 0, "tokens": 0, "seconds": 0.0}
    checkpoint = os.path.join(args.out, "checkpoint.pt")
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=False)
        model.load_state_dict(saved["model"])
        for optim, s in zip(optims, saved["optimizers"]):
            optim.load_state_dict(s)
        state = saved["state"]
    log = open(os.path.join(args.out, "train.log"), "a", encoding="utf-8")

    def say(line):
        print(line, flush=True)
        print(line, file=log, flush=True)

    def save():
        torch.save({"model": model.state_dict(), "optimizers": [o.state_dict() for o in optims], "state": state},
                   checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)

    if not state["total"]:
        say(f"# {sum(p.numel() for p in model.parameters())} parameters, seed {SEED}")
        say("# stage length step tokens processor_seconds loss | right answers by family, over all answers since the last line")
    losses, hits, saved_at, began = [], {}, time.monotonic(), time.process_time()
    while state["stage"] < args.until:
        stage = STAGES[state["stage"]]
        step, length, most = state["step"], stage.length, stage.steps
        for block in model.blocks:
            block.noise, block.four_bits = stage.noise, stage.four_bits
        lr = (stage.first_rate + (stage.last_rate - stage.first_rate) * step / most) * min(1, (state["total"] + 1) / WARMUP)
        for optim, factor in zip(optims, (1.0, EMBEDDING_RATE)):
            for group in optim.param_groups:
                group["lr"] = lr * factor
        ids, weights, positions, spans = batch(rows, state["stage"], step)
        generator = torch.Generator().manual_seed(state["total"])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, found = loss_and_hits(model, ids, weights, positions, spans, generator)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim in optims:
            optim.step()
            optim.zero_grad()
        losses.append(loss.item())
        for family, (good, asked) in found.items():
            g, a = hits.get(family, (0, 0))
            hits[family] = (g + good, a + asked)
        state["step"] += 1
        state["total"] += 1
        state["tokens"] += length * stage.rows
        if state["step"] % REPORT == 0 or state["step"] == most:
            state["seconds"] += time.process_time() - began
            began = time.process_time()
            shares = {f: hits[f][0] / hits[f][1] for f in data.FAMILIES + [data.FREE, data.ANOTHER, data.AGAIN] if f in hits}
            asked = list(shares)
            accuracy = sum(hits[f][0] for f in asked) / max(1, sum(hits[f][1] for f in asked))
            say(f"{state['stage']} {length} {state['step']} {state['tokens']} {state['seconds']:.0f} "
                f"{sum(losses) / len(losses):.3f} | all {accuracy:.3f} "
                + " ".join(f"{f} {s:.3f}" for f, s in shares.items()))
            losses, hits = [], {}
            if state["step"] >= most:
                state["stage"] += 1
                state["step"] = 0
                save()
        if time.monotonic() - saved_at > SAVE_SECONDS:
            save()
            saved_at = time.monotonic()
    save()


if __name__ == "__main__":
    main()
