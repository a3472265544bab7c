"""The model: Llama as in Hugging Face's LlamaForCausalLM, in plain PyTorch."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD, INNER = 1024, 256, 4, 4, 2, 64, 512
CONTEXT, THETA, EPSILON = 8192, 10_000_000.0, 1e-5
NEAR, SHARP, LOUD = 1.1, 4.0, 1.5     # the initial lookup: how sharply it fetches, how sharply it compares, how much it says


def rotary(positions):
    """cos and sin for positions of any shape; a heads axis is put before the last two."""
    frequency = THETA ** (-torch.arange(0, HEAD, 2, device=positions.device, dtype=torch.float32) / HEAD)
    angle = (positions[..., None].float() * frequency).unsqueeze(-3)
    return angle.cos(), angle.sin()


def attention(q, k, v, mask):
    group, t = HEADS // KV_HEADS, q.shape[2]
    return F.scaled_dot_product_attention(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1),
                                          attn_mask=mask, is_causal=mask is None and t > 1)


def short_attention(q, k, v):
    """The same, written out: on a CPU this is faster for short rows."""
    b, _, t, _ = q.shape
    group = HEADS // KV_HEADS
    q = (q * HEAD ** -0.5).reshape(b * KV_HEADS, group * t, HEAD)
    k, v = k.reshape(b * KV_HEADS, t, HEAD), v.reshape(b * KV_HEADS, t, HEAD)
    future = torch.full((t, t), -math.inf, dtype=q.dtype).triu(1).repeat(group, 1)
    return (torch.softmax(q @ k.transpose(1, 2) + future, -1) @ v).view(b, HEADS, t, HEAD)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, EPSILON), nn.RMSNorm(WIDTH, EPSILON)
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD, bias=False)
        self.out = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x, cos, sin, cache=None):
        b, t, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(b, t, HEADS + 2 * KV_HEADS, HEAD).transpose(1, 2)
        qk, v = heads[:, :HEADS + KV_HEADS], heads[:, HEADS + KV_HEADS:]
        left, right = qk.chunk(2, -1)
        cos, sin = cos.to(qk.dtype), sin.to(qk.dtype)
        qk = torch.cat((left * cos - right * sin, right * cos + left * sin), -1)
        q, k = qk[:, :HEADS], qk[:, HEADS:]
        mask = None
        if cache is not None:
            if cache:
                k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
                if t > 1:
                    mask = torch.ones(t, k.shape[2], dtype=torch.bool, device=x.device).tril(k.shape[2] - t)
            cache[:] = [k, v]
        y = attention(q, k, v, mask) if cache is not None or t > 512 else short_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Recall(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, EPSILON)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.01 if name.endswith(("out.weight", "down.weight")) else 0.04)
        nn.init.normal_(self.embed.weight, std=0.2)
        nn.init.constant_(self.norm.weight, 0.2)
        self.start_with_lookup()

    @torch.no_grad()
    def start_with_lookup(self):
        """Initial weights that already continue a text as it went on after the same two tokens before.

        Small models find this circuit by themselves only after millions of tokens, with nothing learnt until
        then. Width 0 of the residual stream starts as a constant, 1..127 hold the token, 128.. four slots for
        the tokens one to four places before, which the heads of the first layer fetch by position. Two heads
        of the second layer compare a position's own token and one before it with the slots of all positions,
        on the pairs that rotate least, and copy the token found there into the prediction.
        All of it is trained like any other weight.
        """
        half, slot, token = HEAD // 2, HEAD // 2, WIDTH // 2 - 1
        basis = lambda rows, columns: torch.linalg.qr(torch.randn(columns, rows))[0].T
        pick = basis(slot, token)                       # what a slot keeps of a token
        self.embed.weight[:, 0] = 1.6
        self.embed.weight[:, WIDTH // 2:] *= 0.1
        rows = lambda block: block.qkv.weight.split([HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD])
        frequency = THETA ** (-torch.arange(half) / half)

        query, key, value = rows(self.blocks[0])
        for w in (query, key, value):
            w.mul_(0.1)
        for g in range(KV_HEADS):
            key[g * HEAD:g * HEAD + half, 0] += NEAR     # the same vector at every position, before rotation
            value[g * HEAD:g * HEAD + slot, 1:WIDTH // 2] += pick
        for h in range(HEADS):                          # rotated back by h + 1 places: the peak lies there
            query[h * HEAD:h * HEAD + half, 0] += NEAR * torch.cos(frequency * (h + 1))
            query[h * HEAD + half:(h + 1) * HEAD, 0] -= NEAR * torch.sin(frequency * (h + 1))
            self.blocks[0].out.weight[WIDTH // 2 + h * slot:WIDTH // 2 + (h + 1) * slot, h * HEAD:h * HEAD + slot] += 0.18 * torch.eye(slot)

        query, key, value = rows(self.blocks[1])
        slow = [i for i in range(half) if frequency[i] * CONTEXT < 1]
        own, earlier = slow, [half + i for i in slow]
        for g, back in zip(range(KV_HEADS), (1, 2)):
            head = g * HEADS // KV_HEADS
            for w, first in ((query, head * HEAD), (key, g * HEAD), (value, g * HEAD)):
                w[first:first + HEAD] *= 0.1
            a, b = SHARP * basis(len(own), slot), SHARP * basis(len(earlier), slot)
            at = lambda n: slice(WIDTH // 2 + (n - 1) * slot, WIDTH // 2 + n * slot)
            query[[head * HEAD + i for i in own], 1:WIDTH // 2] += a @ pick
            key[[g * HEAD + i for i in own], at(1)] += a
            query[[head * HEAD + i for i in earlier], at(back)] += b
            key[[g * HEAD + i for i in earlier], at(back + 1)] += b
            copy = basis(HEAD, token)
            value[g * HEAD:(g + 1) * HEAD, 1:WIDTH // 2] += copy
            self.blocks[1].out.weight[1:WIDTH // 2, head * HEAD:(head + 1) * HEAD] += LOUD * copy.T

    def hidden(self, ids, positions, caches=None):
        cos, sin = rotary(positions)
        x = self.embed(ids)
        for i, block in enumerate(self.blocks):
            x = block(x, cos, sin, None if caches is None else caches[i])
        return self.norm(x)

    def logits(self, hidden):
        return F.linear(hidden, self.embed.weight)

    def hf_tensors(self):
        """The weights under the names of transformers' LlamaForCausalLM."""
        out = {"model.embed_tokens.weight": self.embed.weight, "model.norm.weight": self.norm.weight}
        for i, block in enumerate(self.blocks):
            q, k, v = block.qkv.weight.split([HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD])
            gate, up = block.gate_up.weight.chunk(2)
            for name, w in (("input_layernorm", block.norm1.weight), ("self_attn.q_proj", q),
                            ("self_attn.k_proj", k), ("self_attn.v_proj", v),
                            ("self_attn.o_proj", block.out.weight),
                            ("post_attention_layernorm", block.norm2.weight),
                            ("mlp.gate_proj", gate), ("mlp.up_proj", up),
                            ("mlp.down_proj", block.down.weight)):
                out[f"model.layers.{i}.{name}.weight"] = w
        return {k: v.detach().contiguous() for k, v in out.items()}
