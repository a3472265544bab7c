"""Writes a trained model as a Hugging Face folder and as ONNX, and checks both against the PyTorch model.

    export.py TEXTS OUT HF_FOLDER ONNX_FOLDER

TEXTS and OUT are train.py's folders. Beside ONNX_FOLDER lies reference.json then: what transformers writes
greedily after short documents with a question. The ONNX graph is torch.onnx.export's (dynamo, opset 18, float32 but for the
weights' storage in float16) of transformers'
LlamaForCausalLM with cache inputs: input_ids, attention_mask, position_ids, past_key_values.N.key/value;
outputs logits, present.N.key/value.
"""
import argparse
import json
import os
import re
import shutil

import numpy as np
import onnx
import onnxruntime
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, DynamicCache

import data
import evaluate
import model as net
from train import SEED

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0,
    "mlp_bias": False, "bos_token_id": 0, "eos_token_id": 1, "head_dim": net.HEAD, "hidden_act": "silu",
    "hidden_size": net.WIDTH, "initializer_range": 0.02, "intermediate_size": net.INNER,
    "max_position_embeddings": net.CONTEXT, "num_attention_heads": net.HEADS, "num_hidden_layers": net.LAYERS,
    "num_key_value_heads": net.KV_HEADS, "pretraining_tp": 1, "rms_norm_eps": net.EPSILON, "rope_scaling": None,
    "rope_theta": net.THETA, "tie_word_embeddings": True, "torch_dtype": "float16", "use_cache": True,
    "vocab_size": net.VOCABULARY,
}
TOKENIZER_CONFIG = {"bos_token": data.BOS, "eos_token": data.EOS, "clean_up_tokenization_spaces": False,
                    "model_max_length": net.CONTEXT, "tokenizer_class": "PreTrainedTokenizerFast"}
TOKENIZER_FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]


def write_hf(model, out, folder):
    os.makedirs(folder, exist_ok=True)
    for name, content in (("config.json", CONFIG), ("tokenizer_config.json", TOKENIZER_CONFIG),
                          ("generation_config.json", {"bos_token_id": 0, "eos_token_id": 1, "do_sample": False})):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=2) + "\n")
    shutil.copy(os.path.join(out, "tokenizer.json"), folder)
    save_file({k: v.to(torch.float16) for k, v in model.hf_tensors().items()},
              os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


class WithPast(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids, past_key_values):
        cache = DynamicCache()
        for i, (key, value) in enumerate(past_key_values):
            cache.update(key, value, i)
        done = self.model(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                          past_key_values=cache, use_cache=True)
        return done.logits, [(layer.keys, layer.values) for layer in done.past_key_values.layers]


def write_onnx(model, hf_folder, folder):
    os.makedirs(folder, exist_ok=True)
    past, new = 5, 3
    cache = lambda: torch.randn(2, net.KV_HEADS, past, net.HEAD)
    args = (torch.randint(2, net.VOCABULARY, (2, new)), torch.ones(2, past + new, dtype=torch.long),
            torch.arange(past, past + new)[None].repeat(2, 1), [(cache(), cache()) for _ in range(net.LAYERS)])
    dim = torch.export.Dim
    batch, sequence, before = dim("batch_size"), dim("sequence_length"), dim("past_sequence_length")
    shapes = ({0: batch, 1: sequence}, {0: batch, 1: dim.DYNAMIC}, {0: batch, 1: sequence},
              [({0: batch, 2: before}, {0: batch, 2: before}) for _ in range(net.LAYERS)])
    names = [f"{i}.{kind}" for i in range(net.LAYERS) for kind in ("key", "value")]
    with torch.no_grad():
        program = torch.onnx.export(
            WithPast(model).eval(), args, dynamo=True, opset_version=18, dynamic_shapes=shapes,
            input_names=["input_ids", "attention_mask", "position_ids"] + [f"past_key_values.{n}" for n in names],
            output_names=["logits"] + [f"present.{n}" for n in names])
    path = os.path.join(folder, "model.onnx")
    program.save(path, external_data=False)
    graph = onnx.load(path)
    del graph.metadata_props[:]
    for part in (graph.graph, *graph.graph.node, *graph.graph.input, *graph.graph.output,
                 *graph.graph.value_info, *graph.graph.initializer):
        kept = [(p.key, p.value) for p in part.metadata_props if p.key == "namespace"]
        del part.metadata_props[:]
        for key, value in kept:
            part.metadata_props.add(key=key, value=value)
    halve(graph.graph)
    onnx.save(graph, path)
    for name in TOKENIZER_FILES:
        shutil.copy(os.path.join(hf_folder, name), folder)


def halve(graph):
    """Keeps weights in float16, which holds them exactly, and casts them where the graph begins."""
    casts = []
    for weight in graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT and len(weight.dims) == 2:
            name = weight.name
            weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight).astype(np.float16), name + ".half"))
            casts.append(onnx.helper.make_node("Cast", [weight.name], [name], to=onnx.TensorProto.FLOAT))
    nodes = casts + list(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)


@torch.no_grad()
def write_reference(theirs, rows, path):
    """Greedy continuations by transformers."""
    greedy = []
    for family in ("multikey", "multivalue", "passkey", "single"):
        rows.rng.seed(f"reference {family}")
        _, asks, document = evaluate.case(rows, family, 440, 0)
        prompt = document + asks[0][0]
        ids = rows.tokenizer.encode(prompt).ids
        done = theirs.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=48, do_sample=False)
        greedy.append({"prompt": prompt, "prompt_ids": ids, "generated_ids": done[0, len(ids):].tolist()})
        print(family, repr(asks[0][0]), repr(rows.tokenizer.decode(greedy[-1]["generated_ids"])), asks[0][1])
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"greedy": greedy}, file, indent=1)


@torch.no_grad()
def check(ours, theirs, folder, tokenizer):
    """Largest differences of the logits: transformers and ONNX Runtime (with a cache, in two steps) to ours."""
    text = "The special number for amber-otter is 48213. The sky is blue. What is the special number for amber-otter? It is 48213\n"
    ids = torch.tensor([tokenizer.encode(text).ids])
    n = ids.shape[1]
    want = ours.logits(ours.hidden(ids, torch.arange(n)[None]))
    session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"), providers=["CPUExecutionProvider"])
    outputs = [o.name for o in session.get_outputs()]
    past = {f"past_key_values.{i}.{k}": np.zeros((1, net.KV_HEADS, 0, net.HEAD), np.float32)
            for i in range(net.LAYERS) for k in ("key", "value")}
    got = []
    for first, last in ((0, n // 2), (n // 2, n)):
        feed = {"input_ids": ids[:, first:last].numpy(), "attention_mask": np.ones((1, last), np.int64),
                "position_ids": np.arange(first, last)[None], **past}
        result = dict(zip(outputs, session.run(None, feed)))
        past = {re.sub("^present", "past_key_values", k): v for k, v in result.items() if k != "logits"}
        got.append(result["logits"])
    print("transformers to PyTorch:", (theirs(ids).logits - want).abs().max().item())
    print("ONNX Runtime to PyTorch:", np.abs(np.concatenate(got, 1) - want.numpy()).max())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("texts")
    parser.add_argument("out")
    parser.add_argument("hf_folder")
    parser.add_argument("onnx_folder")
    args = parser.parse_args()
    model = net.Recall()
    model.load_state_dict(torch.load(os.path.join(args.out, "checkpoint.pt"), weights_only=False)["model"])
    with torch.no_grad():
        for p in model.parameters():        # what the files hold
            p.copy_(p.to(torch.float16))
    write_hf(model, args.out, args.hf_folder)
    theirs = AutoModelForCausalLM.from_pretrained(args.hf_folder, dtype=torch.float32).eval()
    write_onnx(theirs, args.hf_folder, args.onnx_folder)
    tokenizer = Tokenizer.from_file(os.path.join(args.out, "tokenizer.json"))
    check(model.eval(), theirs, args.onnx_folder, tokenizer)
    rows = data.Rows(tokenizer, data.read_texts(args.texts), SEED, held_out=True)
    write_reference(theirs, rows, os.path.join(args.onnx_folder, "..", "reference.json"))


if __name__ == "__main__":
    main()
