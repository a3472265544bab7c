"""Dense recall of a trained model: greedy answers, right only if every character is.

    evaluate.py TEXTS OUT [--lengths 2048,4096,8192] [--questions 200] [--families ...]

Documents are new (other seeds), keys and values of words come from a held-out eighth of the words, and
about half the wordings are held-out ones. Each document is read once; its questions are then asked one by
one, each directly after the document, as if it were the only one. The questions of one document are about
different facts, or, in `single` and `passkey`, word the same question in different ways.
"""
import argparse
import os

import torch
from tokenizers import Tokenizer

import data
import model as net
from train import SEED

ASKED = ["single", "multikey", "multivalue", "multiquery", "passkey", "dictionary", "trace", "copy"]
MOST_TOKENS = 192       # no answer is longer


def case(rows, family, length):
    """A document of this length without questions, and questions with their answers to put after it."""
    rng = rows.rng
    room = 450          # for the question and its answer, and for a last statement that overruns
    density = {"single": 0.0, "passkey": 0.0}.get(family, rng.choice([0.05, 0.2, 0.5, 1.0]))
    measure = lambda text: len(rows.encode(text))
    document = data.Document(rows.world, rng, length - room, measure, {family}, density, 0, 0)
    ids = [0] + [t for text, kind, _ in document.pieces for t in rows.encode(text)]
    assert len(ids) < length - 200
    asks = []
    if family == "multiquery":
        while len(asks) < 10:
            document.pieces = []
            document.ask(document.facts)
            asks += [(document.pieces[0][0], document.pieces[1][0])] if document.pieces[1][2] == family else []
    elif family in ("single", "passkey"):
        asks = [(f"\n{q}", a) for f in document.facts for _, q, a in f.asks]
        if family == "passkey":
            asks = [(f"\n{q}", asks[0][1]) for q in ("What is the pass key? Answer:", "The pass key is") if "pass key" in asks[0][0]] + asks
    else:
        for fact in rng.sample(document.facts, min(10, len(document.facts))):
            _, q, a = rng.choice(fact.asks)
            asks.append((f"\n{q}", a))
    return ids, asks


@torch.no_grad()
def answer(model, caches, start, ids, stop):
    """Greedy tokens up to a line break. The caches are left as they were."""
    mine, position, out = [list(c) for c in caches], start, []
    while len(out) < MOST_TOKENS:
        hidden = model.hidden(torch.tensor([ids]), torch.arange(position, position + len(ids))[None], mine)
        position += len(ids)
        ids = [int(model.logits(hidden[:, -1]).argmax())]
        out += ids
        if ids[0] == stop:
            break
    return out


@torch.no_grad()
def accuracy(model, rows, family, length, questions):
    stop = rows.encode("\n")[0]
    right = asked = 0
    while asked < questions:
        ids, asks = case(rows, family, length)
        caches = [[] for _ in model.blocks]
        model.hidden(torch.tensor([ids]), torch.arange(len(ids))[None], caches)
        for question, expected in asks:
            got = answer(model, caches, len(ids), rows.encode(question), stop)
            right += got == rows.encode(expected)
            asked += 1
    return right, asked


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("texts")
    parser.add_argument("out")
    parser.add_argument("--lengths", default="2048,4096,8192")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--families", default=",".join(ASKED))
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("THREADS", os.cpu_count())))
    rows = data.Rows(Tokenizer.from_file(os.path.join(args.out, "tokenizer.json")), data.read_texts(args.texts), SEED, held_out=True)
    model = net.Recall()
    saved = torch.load(os.path.join(args.out, "checkpoint.pt"), weights_only=False)
    model.load_state_dict(saved["model"])
    print("#", saved["state"], flush=True)
    for length in map(int, args.lengths.split(",")):
        for family in args.families.split(","):
            rows.rng.seed(f"evaluate {family} {length}")
            right, asked = accuracy(model, rows, family, length, args.questions)
            print(f"{length} {family} {right}/{asked} {right / asked:.3f}", flush=True)


if __name__ == "__main__":
    main()
