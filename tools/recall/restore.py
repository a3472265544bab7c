"""Makes a folder in which train.py goes on from the weights of an exported model.

    restore.py MODEL OUT STAGE

MODEL is the folder with reference.json and onnx/ that export.py wrote, models/recall for one. OUT receives
tokenizer.json, train.log (the one kept here, on which the model was trained) and a checkpoint.pt at the
beginning of STAGE with a new state of the optimizers. Fails unless the weights give what reference.json says.
"""
import argparse
import json
import os
import shutil

import onnx
import torch

import model as net
from train import optimizers


def matrices(path):
    """The weights in the order in which the graph uses them: by layer query, key, value, out, gate, up, down."""
    graph = onnx.load(path).graph
    weights = {w.name: torch.tensor(onnx.numpy_helper.to_array(w)).float() for w in graph.initializer if w.data_type in (1, 10)}
    source = {n.output[0]: n.input[0] for n in graph.node if n.op_type in ("Cast", "Transpose")}
    blocks, tables = [], {}
    for node in graph.node:
        for name in node.input:
            while name in source:
                name = source[name]
            if name not in weights:
                continue
            if node.op_type == "MatMul" and "lm_head" not in name:
                blocks.append(weights[name].T)
            elif "norm" in name or "lm_head" in name:
                tables[name.removeprefix("model.").removesuffix(".half")] = weights[name]
    return blocks, tables


def restored(path):
    blocks, tables = matrices(path)
    model = net.Recall()
    assert len(blocks) == 7 * net.LAYERS, len(blocks)
    with torch.no_grad():
        model.embed.weight.copy_(tables["lm_head.weight"])
        model.norm.weight.copy_(tables["model.norm.weight"])
        for i, block in enumerate(model.blocks):
            query, key, value, out, gate, up, down = blocks[7 * i:7 * i + 7]
            block.norm1.weight.copy_(tables[f"model.layers.{i}.input_layernorm.weight"])
            block.norm2.weight.copy_(tables[f"model.layers.{i}.post_attention_layernorm.weight"])
            block.qkv.weight.copy_(torch.cat((query, key, value)))
            block.out.weight.copy_(out)
            block.gate_up.weight.copy_(torch.cat((gate, up)))
            block.down.weight.copy_(down)
    return model


@torch.no_grad()
def writes_reference(model, path):
    for case in json.load(open(path, encoding="utf-8"))["greedy"]:
        ids = case["prompt_ids"] + case["generated_ids"]
        hidden = model.hidden(torch.tensor([ids]), torch.arange(len(ids))[None])
        greedy = model.logits(hidden[0, len(case["prompt_ids"]) - 1:-1]).argmax(-1).tolist()
        if greedy != case["generated_ids"]:
            return False
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("stage", type=int)
    args = parser.parse_args()
    model = restored(os.path.join(args.model, "onnx", "model.onnx"))
    if not writes_reference(model, os.path.join(args.model, "reference.json")):
        raise SystemExit("the weights do not give what reference.json says")
    os.makedirs(args.out, exist_ok=True)
    shutil.copy(os.path.join(args.model, "onnx", "tokenizer.json"), args.out)
    shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "train.log"), args.out)
    lines = [line.split() for line in open(os.path.join(args.out, "train.log"), encoding="utf-8") if line[0] != "#"]
    total = sum(int(a[2]) for a, b in zip(lines, lines[1:] + [["", ""]]) if a[0] != b[0])
    state = {"stage": args.stage, "step": 0, "total": total, "tokens": int(lines[-1][3]), "seconds": float(lines[-1][4])}
    torch.save({"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers(model)], "state": state},
               os.path.join(args.out, "checkpoint.pt"))
    print(state)


if __name__ == "__main__":
    main()
