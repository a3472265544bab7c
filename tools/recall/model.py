"""The model: Llama as in Hugging Face's LlamaForCausalLM, in plain PyTorch."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD, INNER = 3148, 256, 4, 8, 2, 64, 512
CONTEXT, THETA, EPSILON = 8192, 1e14, 1e-5


def rotary(positions):
    """cos and sin for positions of any shape; a heads axis is put before the last two."""
    frequency = THETA ** (-torch.arange(0, HEAD, 2, device=positions.device, dtype=torch.float32) / HEAD)
    angle = (positions[..., None].float() * frequency).unsqueeze(-3)
    return angle.cos(), angle.sin()


def attention(q, k, v, mask):
    group, t = HEADS // KV_HEADS, q.shape[2]
    return F.scaled_dot_product_attention(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1),
                                          attn_mask=mask, is_causal=mask is None and t > 1)


def causal_attention(q, k, v):
    """The same for queries of all positions, by 128 of them at a time: on a CPU this trains twice as fast."""
    b, _, t, _ = q.shape
    group, part = HEADS // KV_HEADS, min(t, 128)
    q = (q * HEAD ** -0.5).reshape(b * KV_HEADS, group, t, HEAD)
    k, v = k.reshape(b * KV_HEADS, t, HEAD).transpose(1, 2), v.reshape(b * KV_HEADS, t, HEAD)
    future = torch.full((part, part), -math.inf, dtype=q.dtype).triu(1).repeat(group, 1)
    out = []
    for start in range(0, t, part):
        scores = q[:, :, start:start + part].reshape(b * KV_HEADS, group * part, HEAD) @ k[:, :, :start + part]
        with torch.no_grad():               # a constant: nothing to go back through
            scores[:, :, start:] += future
        out.append((torch.softmax(scores, -1) @ v[:, :start + part]).view(b, HEADS, part, HEAD))
    return torch.cat(out, 2)


# Of a cache of four bits, in parts of a row's largest number (ir/src/interpret/codes.rs, docs/numerics.md).
LEVELS = torch.tensor([-122, -90, -68, -50, -36, -24, -13, -4, 4, 13, 24, 36, 50, 68, 90, 122]) / 127
MIDDLES = (LEVELS[1:] + LEVELS[:-1]) / 2


def hadamard(n):
    turn = torch.ones(1, 1)
    while len(turn) < n:
        turn = torch.cat((torch.cat((turn, turn), 1), torch.cat((turn, -turn), 1)))
    return turn / n ** 0.5


TURN = hadamard(HEAD)


@torch.no_grad()
def in_four_bits(k):
    """Keys [b, heads, t, HEAD] about as a cache of four bits keeps them: without their mean, here that of the step's
    rows, turned, here without signs, and in levels of the largest."""
    mean = k.float().mean((0, 2), keepdim=True)
    turned = (k.float() - mean) @ TURN
    largest = turned.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    levels = LEVELS[torch.bucketize(turned / largest, MIDDLES)] * largest
    return (levels @ TURN + mean).to(k.dtype)      # TURN is symmetric


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.noise = 0.0            # of keys in training, over how far they lie from their mean
        self.four_bits = False      # of keys in training; gradients pass as if they were exact
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
        if self.noise and torch.is_grad_enabled():
            away = (k - k.mean(2, keepdim=True)).detach().float().square().mean(-1, keepdim=True).sqrt()
            k = k + (self.noise * away * torch.randn_like(k, dtype=torch.float32)).to(k.dtype)
        if self.four_bits and torch.is_grad_enabled():
            k = k + (in_four_bits(k) - k).detach()
        mask = None
        if cache is not None:
            if cache:
                k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
                if t > 1:
                    mask = torch.ones(t, k.shape[2], dtype=torch.bool, device=x.device).tril(k.shape[2] - t)
            cache[:] = [k, v]
        y = attention(q, k, v, mask) if cache is not None or t % min(t, 128) else causal_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Recall(nn.Module):
    def __init__(self, mark=0):
        """mark: the token that questions for all values begin with; it only matters for the initial weights."""
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, EPSILON)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.01 if name.endswith(("out.weight", "down.weight")) else 0.04)
        nn.init.normal_(self.embed.weight, std=0.2)
        nn.init.constant_(self.norm.weight, 0.2)
        self.start_with_lookup(mark)

    @torch.no_grad()
    def start_with_lookup(self, mark):
        """Initial weights that already continue a text as it went on after the same six tokens before.

        Small models find this circuit by themselves only after millions of tokens, with nothing learnt until
        then. The residual stream starts as: width 0, a constant; 1..127, the token; 128..191, the run: the sum
        of the tokens one to six places before, each turned once for every place; 192..255, the bag: a mean of
        the tokens nearby. The heads of the first layer fetch these by position. Two heads of the third layer
        compare the run as it will be at the next place with the runs at all positions, on pairs that hardly
        rotate over the whole context, and copy the token found there into the prediction.

        Where a question asks for all values of a key, a value that was said is not to be said again. Such a
        question begins with a word of its own, `mark` its token. The last head of the first layer looks for it
        among the last hundred tokens or so and adds it, turned in a way of its own, to the bag: a flag. A head
        of the second layer looks for the same run as the lookup does, but only where there is a flag, or else
        at the row's first token, and adds the tokens found there to the bag, turned again. The lookup takes
        the likeness of these to the token to be copied off its scores.

        All of it is trained like any other weight.
        """
        half, group = HEAD // 2, HEADS // KV_HEADS
        token, run, bag = slice(1, WIDTH // 2), slice(WIDTH // 2, WIDTH // 2 + HEAD), slice(WIDTH - HEAD, WIDTH)

        def basis(rows, columns):           # orthonormal rows
            return torch.linalg.qr(torch.randn(columns, rows))[0].T

        def rows(block):
            return block.qkv.weight.split([HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD])

        pick, turn = basis(HEAD, WIDTH // 2 - 1), basis(HEAD, HEAD)
        near = 0.25                         # how large a fetched token is in the stream
        gain = 5.8                          # of the first norm: tokens are 2.25 long, the constant is 1.6
        sharp = 3.6                         # how sharply runs are compared
        loud, avoid = 1.5, 3.0              # how much is copied; how much a value that was said counts against
        late, found = 1.5, 1.2              # of the head that looks for the word: for nearness, for the word
        said_sharp, said_flag, said_idle, said_size = 1.3, 2.6, 3.0, 0.6
        other, third = basis(HEAD, HEAD), basis(HEAD, HEAD)
        self.embed.weight[:, WIDTH // 2:] *= 0.1
        self.embed.weight[:, token] *= 2.25 / self.embed.weight[:, token].norm(dim=1, keepdim=True)
        self.embed.weight[:, 0] = 1.6
        frequency = THETA ** (-torch.arange(half) / half)

        first = self.blocks[0]
        query, key, value = rows(first)
        for w in (query, key, value):
            w.mul_(0.02)
        for g in range(KV_HEADS):
            key[g * HEAD:g * HEAD + 14, 0] += 1.1        # the same vector at every position, before rotation
            value[g * HEAD:(g + 1) * HEAD, token] += pick
        exact = HEADS - 2
        marked = self.embed.weight[mark, token].clone()
        for h in range(HEADS):
            if h < exact:                                # rotated back by h + 1 places: the peak lies there
                back, strength, place, put = h + 1, torch.full((half,), 1.1), run, torch.linalg.matrix_power(turn, h + 1)
            elif h == exact:                             # a window of about 5 tokens
                back, strength, place, put = 0, torch.where(frequency < 0.2, 0.3, 0.0), bag, torch.eye(HEAD)
            else:                                        # the word, in a window of about 100
                back, strength, place, put = 0, torch.where((frequency < 1e-2) & (frequency > 2e-4), late, 0.0), bag, other
                query[h * HEAD + half - 1, 0] += found
                key[(h // group) * HEAD + half - 1, token] += found * marked / marked.norm()
            query[h * HEAD:h * HEAD + half, 0] += strength * torch.cos(frequency * back)
            query[h * HEAD + half:(h + 1) * HEAD, 0] -= strength * torch.sin(frequency * back)
            first.out.weight[place, h * HEAD:(h + 1) * HEAD] += near * put

        # The lookup, in the third layer, and in the second what was said already.
        slow = [i for i in range(half) if frequency[i] * CONTEXT < 0.5]
        flagged, idle = slow[-2:]
        slow = slow[:-2] + [half + i for i in slow[:-2]]
        runs, tokens = slow[:-12], slow[-12:]

        second, head, g = self.blocks[1], 0, 0
        query, key, value = rows(second)
        for w, start in ((query, head * HEAD), (key, g * HEAD), (value, g * HEAD)):
            w[start:start + HEAD] *= 0.1
        compare = said_sharp * basis(len(slow), HEAD)
        query[slow, token] += near * gain * compare @ turn @ pick
        query[slow, run] += compare @ turn
        key[slow, run] += compare
        mark_seen = other @ pick @ marked
        key[flagged, bag] += said_flag * mark_seen / mark_seen.norm()
        query[flagged, 0] += said_flag
        key[idle, token] += said_idle * self.embed.weight[0, token] / self.embed.weight[0, token].norm()
        query[idle, 0] += said_idle
        value[:HEAD, token] += pick
        second.out.weight[bag, :HEAD] += said_size * third

        lookup = self.blocks[2]
        query, key, value = rows(lookup)
        for g in range(KV_HEADS):
            head = g * group
            for w, start in ((query, head * HEAD), (key, g * HEAD), (value, g * HEAD)):
                w[start:start + HEAD] *= 0.1
            compare, compare_token = sharp * basis(len(runs), HEAD), basis(len(tokens), HEAD)
            at, to = [head * HEAD + i for i in runs], [g * HEAD + i for i in runs]
            query[at, token] += near * gain * compare @ turn @ pick
            query[at, run] += compare @ turn
            key[to, run] += compare
            at, to = [head * HEAD + i for i in tokens], [g * HEAD + i for i in tokens]
            query[at, bag] -= avoid * compare_token @ third.T
            key[to, token] += avoid * compare_token @ pick
            copy = basis(HEAD, WIDTH // 2 - 1)
            value[g * HEAD:(g + 1) * HEAD, token] += copy
            lookup.out.weight[token, head * HEAD:(head + 1) * HEAD] += loud * copy.T

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
