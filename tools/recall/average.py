"""Writes the mean of the weights that train.py made and of those of an exported model.

    average.py OUT MODEL SHARE AVERAGED

OUT is train.py's folder, MODEL the one that restore.py began it from, models/recall for one. AVERAGED receives
tokenizer.json, train.log and a checkpoint.pt whose weights are SHARE times OUT's and 1 - SHARE times MODEL's, for
evaluate.py and export.py. Two states on one path of training lie in one basin, and their mean is often better than
either (Izmailov et al., arXiv:1803.05407; Wortsman et al., arXiv:2203.05482).
"""
import argparse
import os
import shutil

import torch

from restore import restored


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("model")
    parser.add_argument("share", type=float)
    parser.add_argument("averaged")
    args = parser.parse_args()
    os.makedirs(args.averaged, exist_ok=True)
    saved = torch.load(os.path.join(args.out, "checkpoint.pt"), weights_only=False)
    before = restored(os.path.join(args.model, "onnx", "model.onnx")).state_dict()
    saved["model"] = {name: (args.share * weight.double() + (1 - args.share) * before[name].double()).float()
                      for name, weight in saved["model"].items()}
    torch.save(saved, os.path.join(args.averaged, "checkpoint.pt"))
    for name in ("tokenizer.json", "train.log"):
        shutil.copy(os.path.join(args.out, name), args.averaged)


if __name__ == "__main__":
    main()
