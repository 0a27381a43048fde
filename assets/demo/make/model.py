"""A compact Llama in PyTorch with the parameter names, the rotary convention and the config of
Hugging Face's."""
import json
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "initializer_range": 0.02,
    "pretraining_tp": 1,
    "use_cache": True,
    "torch_dtype": "bfloat16",
}


class RMSNorm(nn.Module):
    def __init__(self, d, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps)


def rotary_tables(cfg, n):
    hd = cfg["head_dim"]
    inv = 1.0 / (cfg["rope_theta"] ** (torch.arange(0, hd, 2).float() / hd))
    ang = torch.outer(torch.arange(n).float(), inv)
    ang = torch.cat([ang, ang], -1)
    return ang.cos(), ang.sin()


def rotate(x, cos, sin):
    """rotate_half, as Hugging Face has it: the second half of a head pairs with the first."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, hd = c["hidden_size"], c["head_dim"]
        self.h, self.kv, self.hd = c["num_attention_heads"], c["num_key_value_heads"], hd
        self.q_proj = nn.Linear(d, self.h * hd, bias=False)
        self.k_proj = nn.Linear(d, self.kv * hd, bias=False)
        self.v_proj = nn.Linear(d, self.kv * hd, bias=False)
        self.o_proj = nn.Linear(self.h * hd, d, bias=False)

    def qkv(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.h, self.hd).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv, self.hd).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv, self.hd).transpose(1, 2)
        return rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype), v

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(x, cos, sin)
        r = self.h // self.kv
        k, v = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, self.h * self.hd))

    def step(self, x, cos, sin, cache, at, mask):
        """One token per row; `cache` is (K, V) [b, kv, n, hd], written at column `at`; `mask` is
        added to the scores."""
        b = x.shape[0]
        q, k, v = self.qkv(x, cos, sin)
        cache[0][:, :, at], cache[1][:, :, at] = k[:, :, 0], v[:, :, 0]
        K, V = cache[0][:, :, :at + 1], cache[1][:, :, :at + 1]
        y = F.scaled_dot_product_attention(
            q, K, V, attn_mask=mask[:, None, None, : at + 1], enable_gqa=True
        )
        return self.o_proj(y.reshape(b, 1, self.h * self.hd))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, f = c["hidden_size"], c["intermediate_size"]
        self.gate_proj = nn.Linear(d, f, bias=False)
        self.up_proj = nn.Linear(d, f, bias=False)
        self.down_proj = nn.Linear(f, d, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), MLP(c)
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Block(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])


class Llama(nn.Module):
    def __init__(self, c=CONFIG):
        super().__init__()
        self.cfg = c
        self.model = Body(c)
        cos, sin = rotary_tables(c, c["max_position_embeddings"])
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                std = 0.02 if "embed" in name else p.shape[1] ** -0.5
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    std *= 0.3
                nn.init.normal_(p, 0, std)

    def forward(self, ids, taps=None, tap=None):
        """Logits [b, t, vocab]. With a list `taps`, every block's output is appended to it; with a
        number `tap`, that block's output is returned too."""
        t = ids.shape[1]
        cos, sin = self.cos[:t], self.sin[:t]
        x = self.model.embed_tokens(ids)
        for i, blk in enumerate(self.model.layers):
            x = x + blk.self_attn(blk.input_layernorm(x), cos, sin)
            x = x + blk.mlp(blk.post_attention_layernorm(x))
            if taps is not None:
                taps.append(x)
            if i == tap:
                tapped = x
        logits = F.linear(self.model.norm(x), self.model.embed_tokens.weight)
        return logits if tap is None else (logits, tapped)

    @torch.no_grad()
    def step(self, ids, pos, caches, at, mask):
        """One token per row at positions `pos` [b]; returns logits [b, vocab]."""
        cos, sin = self.cos[pos][:, None, None], self.sin[pos][:, None, None]
        x = self.model.embed_tokens(ids)[:, None]
        for blk, cache in zip(self.model.layers, caches):
            x = x + blk.self_attn.step(
                blk.input_layernorm(x).to(x.dtype), cos, sin, cache, at, mask
            )
            x = x + blk.mlp(blk.post_attention_layernorm(x).to(x.dtype))
        return F.linear(self.model.norm(x).to(x.dtype), self.model.embed_tokens.weight)[:, 0]


def load(folder):
    """The saved model in f32 (weights as rounded to bf16)."""
    from safetensors.torch import load_file
    with open(os.path.join(folder, "config.json")) as f:
        cfg = {**CONFIG, **json.load(f)}
    cfg["rope_theta"] = CONFIG["rope_theta"]
    m = Llama(cfg)
    state = {k: v.float() for k, v in load_file(os.path.join(folder, "model.safetensors")).items()}
    m.load_state_dict(state, strict=True)
    return m.eval()


def save(model, folder):
    from safetensors.torch import save_file
    os.makedirs(folder, exist_ok=True)
    state = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    save_file(state, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(model.cfg, f, indent=2)
        f.write("\n")
    with open(os.path.join(folder, "generation_config.json"), "w") as f:
        json.dump(
            {
                "bos_token_id": 0,
                "eos_token_id": 1,
                "do_sample": True,
                "temperature": 1.0,
                "max_new_tokens": 512,
            },
            f,
            indent=2,
        )
        f.write("\n")
