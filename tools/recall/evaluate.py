"""Dense recall of a trained model: greedy answers, right only if every character is, or all values occur.

    evaluate.py TEXTS OUT [--lengths 2048,4096,8192] [--questions 200] [--families ...] [--level 0] [--known]

Documents are new (other seeds); words as keys and values come from a held-out eighth of the words. Held-out
wordings come in too, from level 1 on (for `passkey` and for the nouns from level 0). --known: words and
wordings of the training, other seeds. Each document is read once; its questions are then asked one by one,
each directly after the document, as if it were the only one.
"""
import argparse
import os

import torch
from tokenizers import Tokenizer

import data
import model as net
from train import SEED

MOST_TOKENS = 160       # no answer is longer


def case(rows, family, length, level):
    """A document of this length without questions, questions with their answers to put after it, and its text."""
    rng = rows.rng
    room = 250          # for the question and its answer, and for a last statement that overruns
    share = {"single": 0.0, "passkey": 0.0}.get(family, rng.choice([0.05, 0.2, 0.5, 1.0]))
    document = data.Document(rows.world, rng, length - room, lambda text: len(rows.encode(text)), level, [family], share, 0)
    ids = [0] + [t for text, *_ in document.pieces for t in rows.encode(text)]
    asks = rng.sample(document.asks, min(8, len(document.asks)))
    return ids, [(rng.choice(questions), answer) for _, questions, answer in asks], "".join(text for text, *_ in document.pieces)


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
def accuracy(model, rows, family, length, questions, level):
    stop = rows.encode("\n")[0]
    right = asked = 0
    while asked < questions:
        ids, asks, _ = case(rows, family, length, level)
        caches = [[] for _ in model.blocks]
        model.hidden(torch.tensor([ids]), torch.arange(len(ids))[None], caches)
        for question, expected in asks:
            got = answer(model, caches, len(ids), rows.encode(question), stop)
            got = rows.tokenizer.decode(got)
            if family == "multivalue":
                right += all(value in got for value in expected[0])
            else:
                right += got.strip() == expected.strip()
            asked += 1
    return right, asked


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("texts")
    parser.add_argument("out")
    parser.add_argument("--lengths", default="2048,4096,8192")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--families", default="single,multikey,multivalue,passkey", help="of " + ", ".join(data.FAMILIES))
    parser.add_argument("--level", type=int, default=0, help="of the data: which wordings, keys and values")
    parser.add_argument("--known", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("THREADS", os.cpu_count())))
    rows = data.Rows(Tokenizer.from_file(os.path.join(args.out, "tokenizer.json")), data.read_texts(args.texts), SEED, held_out=not args.known)
    model = net.Recall()
    saved = torch.load(os.path.join(args.out, "checkpoint.pt"), weights_only=False)
    model.load_state_dict(saved["model"])
    print("#", saved["state"], flush=True)
    for length in map(int, args.lengths.split(",")):
        for family in args.families.split(","):
            rows.rng.seed(f"evaluate {family} {length}")
            right, asked = accuracy(model, rows, family, length, args.questions, args.level)
            print(f"{length} {family} {right}/{asked} {right / asked:.3f}", flush=True)


if __name__ == "__main__":
    main()
