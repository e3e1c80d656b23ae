"""GLM-5.3-Flash (glm5_next) in numpy, written from the formulas of docs/model.md and nothing else.

Independent of winnow's C++: it judges it. Clear before quick: one prompt at a time, the whole prompt in one forward, the
recurrence token by token, everything in float64. It covers what a config can vary: any kpool, tail on or off, shared
indexer layers, dense and expert layers in any order, expert groups, any number of streams, both forget gates, any clamp.

    model = Model(config, values)            # values: official tensor name -> array, see tensorfile.as_values
    logits, trace = model.forward(tokens)    # [T, vocab]
"""
import numpy as np

INDEX_NORM_EPS = 1e-6  # of the indexer's layer norm and of the q, k normalisation; not in the config
KDA_EPS = 1e-6


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def rms_norm(x, w, eps):
    return w * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def layer_norm(x, w, b, eps):
    d = x - x.mean(-1, keepdims=True)
    return w * d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) + b


class Config:
    """The fields of text_config that the forward pass needs, under the names of config.json."""

    def __init__(self, config):
        t = config["text_config"]
        kda = t["linear_attn_config"]
        layers = t["num_hidden_layers"]
        self.layers = layers
        self.mla = [x != "linear_attention" for x in t["layer_types"]]
        self.moe = [x == "sparse" for x in t["mlp_layer_types"]]
        self.shared_indexer = [x == "shared" for x in t.get("indexer_types") or ["full"] * layers]
        self.eps = t["rms_norm_eps"]
        self.heads, self.nope, self.v = t["num_attention_heads"], t["qk_nope_head_dim"], t["v_head_dim"]
        self.index_heads, self.index_dim = t["index_n_heads"], t["index_head_dim"]
        self.topk, self.kpool, self.tail = t["index_topk"], t["index_kpool"], t.get("index_kpool_always_select_tail", True)
        self.kda_heads, self.kda_dim, self.taps = kda["num_heads"], kda["head_dim"], kda["short_conv_kernel_size"]
        self.gate_bound = kda.get("gate_lower_bound", kda.get("lower_bound", -5.0 if kda.get("safe_gate", True) else None))
        self.experts, self.top_experts = t["n_routed_experts"], t["num_experts_per_tok"]
        self.groups, self.kept_groups = t.get("n_group", 1), t.get("topk_group", 1)
        self.normalise, self.scaling = t.get("norm_topk_prob", True), t.get("routed_scaling_factor", 2.5)
        limit = t.get("swiglu_limit", 10.0)
        self.limit = np.inf if limit is None else limit
        self.streams, self.sinkhorn, self.hc_eps = t.get("hc_mult", 4), t.get("hc_sinkhorn_iters", 20), t.get("hc_eps", 1e-6)


class Model:
    def __init__(self, config, values):
        self.c = Config(config)
        self.w = values
        self.narrowest_cut = np.inf

    def text(self, name):
        return self.w["model.language_model." + name]

    def linear(self, x, name):
        return x @ self.text(name + ".weight").T

    # ---- residual streams (mHC) ----

    def mix(self, x, p):
        """x [T, n, D] -> what the sublayer reads [T, D], post [T, n], comb [T, n, n]."""
        c = self.c
        tokens, n, _ = x.shape
        flat = x.reshape(tokens, -1)
        flat = flat / np.sqrt((flat * flat).mean(-1, keepdims=True) + c.eps)
        m = flat @ self.text(p + "_fn").T
        base, scale = self.text(p + "_base"), self.text(p + "_scale")
        pre = sigmoid(m[:, :n] * scale[0] + base[:n]) + c.hc_eps
        post = 2 * sigmoid(m[:, n : 2 * n] * scale[1] + base[n : 2 * n])
        logits = (m[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(tokens, n, n)
        return (pre[:, :, None] * x).sum(1), post, sinkhorn(logits, c.sinkhorn, c.hc_eps)

    def sublayer(self, x, site, norm, run):
        u, post, comb = self.mix(x, site)
        y = run(rms_norm(u, self.text(norm + ".weight"), self.c.eps))
        return post[:, :, None] * y[:, None, :] + np.einsum("tij,tid->tjd", comb, x)  # the mixing is transposed

    # ---- KDA ----

    def kda(self, x, p):
        c = self.c
        tokens, h, d = len(x), c.kda_heads, c.kda_dim
        q, k, v = (self.convolve(self.linear(x, f"{p}{s}_proj"), p, s).reshape(tokens, h, d) for s in "qkv")
        unit = lambda a: a / np.sqrt((a * a).sum(-1, keepdims=True) + KDA_EPS)
        q, k = unit(q) * d**-0.5, unit(k)
        f = self.linear(self.linear(x, p + "f_a_proj"), p + "f_b_proj") + self.text(p + "dt_bias")
        rate = np.exp(self.text(p + "A_log"))[None, :, None]
        f = f.reshape(tokens, h, d)
        g = -rate * np.logaddexp(0, f) if c.gate_bound is None else c.gate_bound * sigmoid(rate * f)
        beta = sigmoid(self.linear(x, p + "b_proj"))
        o = delta_rule(q, k, v, g, beta)
        o = rms_norm(o, self.text(p + "o_norm.weight"), c.eps)
        z = self.linear(self.linear(x, p + "g_a_proj"), p + "g_b_proj").reshape(tokens, h, d)
        return self.linear((o * sigmoid(z)).reshape(tokens, -1), p + "o_proj")

    def convolve(self, x, p, s):
        w = self.text(f"{p}{s}_conv1d.weight")[:, 0, :]
        taps = w.shape[1]
        padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
        return silu(sum(w[:, j] * padded[j : j + len(x)] for j in range(taps)))

    # ---- MLA with the indexer ----

    def mla(self, x, p, selected):
        """selected: None to run this layer's own indexer. Returns the output and the selection, bool [T, T]."""
        c = self.c
        tokens = len(x)
        qr = rms_norm(self.linear(x, p + "q_a_proj"), self.text(p + "q_a_layernorm.weight"), c.eps)
        if selected is None:
            selected = self.select(x, qr, p + "indexer.")
        q = self.linear(qr, p + "q_b_proj").reshape(tokens, c.heads, c.nope)
        latent = rms_norm(self.linear(x, p + "kv_a_proj_with_mqa"), self.text(p + "kv_a_layernorm.weight"), c.eps)
        kv = self.linear(latent, p + "kv_b_proj").reshape(tokens, c.heads, c.nope + c.v)
        k, v = kv[..., : c.nope], kv[..., c.nope :]
        score = np.einsum("thd,uhd->htu", q, k) * c.nope**-0.5
        # A row that selects nothing (tail off) is uniform over all keys of the forward, as transformers has it.
        score = np.where(selected[None] | ~selected.any(1)[None, :, None], score, -np.inf)
        score = np.where(selected.any(1)[None, :, None], score, 0.0)
        o = np.einsum("htu,uhd->thd", softmax(score, -1), v)
        return self.linear(o.reshape(tokens, -1), p + "o_proj"), selected

    def select(self, x, qr, p):
        c = self.c
        tokens, pools = len(x), len(x) // c.kpool
        q = self.linear(qr, p + "wq_b").reshape(tokens, c.index_heads, c.index_dim)
        key = layer_norm(self.linear(x, p + "wk"), self.text(p + "k_norm.weight"), self.text(p + "k_norm.bias"), INDEX_NORM_EPS)
        gate = x @ self.text(p + "index_kpool_compress_gate").T
        weight = self.linear(x, p + "weights_proj") * c.index_heads**-0.5
        by_pool = lambda a: a[: pools * c.kpool].reshape(pools, c.kpool, c.index_dim)
        share = softmax(by_pool(gate) + self.text(p + "index_kpool_compress_ape")[None], axis=1)
        pooled = (share * by_pool(key)).sum(1)
        dots = np.maximum(np.einsum("thd,pd->thp", q, pooled), 0) * c.index_dim**-0.5
        return self.choose(np.einsum("th,thp->tp", weight, dots), tokens)

    def choose(self, score, tokens):
        """score [T, pools] -> the selection, bool [T, T].

        narrowest_cut keeps the narrowest gap between the last pool taken and the first left: what rounding could turn.
        Two zeros (all heads negative in both) do not count: they are exact, and the lower pool is taken by rule.
        """
        c = self.c
        selected = np.zeros((tokens, tokens), bool)
        for t in range(tokens):
            complete, slots = (t + 1) // c.kpool, c.topk // c.kpool
            order = np.argsort(-score[t, :complete], kind="stable")  # ties: the lower pool
            if complete > slots:
                last, first_left = score[t, order[slots - 1]], score[t, order[slots]]
                if last != 0 or first_left != 0:
                    self.narrowest_cut = min(self.narrowest_cut, last - first_left)
            for pool in order[:slots]:
                selected[t, pool * c.kpool : (pool + 1) * c.kpool] = True
            if c.tail:
                selected[t, complete * c.kpool : t + 1] = True
        return selected

    # ---- feed-forward ----

    def swiglu(self, x, p):
        gate = np.minimum(self.linear(x, p + "gate_proj"), self.c.limit)
        up = np.clip(self.linear(x, p + "up_proj"), -self.c.limit, self.c.limit)
        return self.linear(silu(gate) * up, p + "down_proj")

    def moe(self, x, p):
        ids, weights = self.route(x, p)
        y = self.swiglu(x, p + "shared_experts.")
        for e in range(self.c.experts):
            token, rank = np.nonzero(ids == e)
            if len(token):
                y[token] += weights[token, rank][:, None] * self.swiglu(x[token], f"{p}experts.{e}.")
        return y

    def route(self, x, p):
        c = self.c
        score = sigmoid(self.linear(x, p + "gate"))
        biased = score + self.text(p + "gate.e_score_correction_bias")
        if c.groups > 1:
            grouped = biased.reshape(len(x), c.groups, -1)
            best = np.argsort(-np.sort(grouped, -1)[..., -2:].sum(-1), axis=-1, kind="stable")[:, : c.kept_groups]
            kept = np.zeros((len(x), c.groups), bool)
            np.put_along_axis(kept, best, True, 1)
            biased = np.where(kept[:, :, None], grouped, -np.inf).reshape(len(x), -1)
        ids = np.argsort(-biased, axis=-1, kind="stable")[:, : c.top_experts]
        weights = np.take_along_axis(score, ids, -1)  # chosen by biased scores, weighted by unbiased ones
        if c.normalise:
            weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
        return ids, weights * c.scaling

    # ---- whole model ----

    def forward(self, tokens):
        """logits [T, vocab] and a trace: streams entering each layer and after the final norm; selections by layer."""
        c = self.c
        x = np.repeat(self.text("embed_tokens.weight")[np.asarray(tokens)][:, None, :], c.streams, 1)
        hidden, selections, selected = [], {}, None
        for i in range(c.layers):
            hidden.append(x)
            p = f"layers.{i}."
            if c.mla[i]:
                own = None if not c.shared_indexer[i] else selected

                def mixer(u, own=own):
                    nonlocal selected
                    y, selected = self.mla(u, p + "self_attn.", own)
                    return y
            else:
                mixer = lambda u: self.kda(u, p + "self_attn.")
            x = self.sublayer(x, p + "hc_attn", p + "input_layernorm", mixer)
            if c.mla[i]:
                selections[i] = selected
            feed = self.moe if c.moe[i] else self.swiglu
            x = self.sublayer(x, p + "hc_ffn", p + "post_attention_layernorm", lambda u: feed(u, p + "mlp."))
        h = rms_norm(x.mean(1), self.text("norm.weight"), c.eps)
        hidden.append(h)
        return h @ self.w["lm_head.weight"].T, {"hidden": hidden, "selected": selections}

    def selection_rows(self, selected, rows):
        """The last rows of a selection as the golden files have it: token ids ascending, then -1, int32."""
        width = self.c.topk + (self.c.kpool - 1 if self.c.tail else 0)
        out = np.full((rows, width), -1, np.int32)
        for r, mask in enumerate(selected[len(selected) - rows :]):
            ids = np.nonzero(mask)[0]
            out[r, : len(ids)] = ids
        return out

    def greedy(self, prompt, count):
        """Greedy continuation, every step from scratch, and the margin of each choice."""
        tokens, margins = list(prompt), []
        for _ in range(count):
            row = self.forward(tokens)[0][-1]
            second, first = np.argsort(row, kind="stable")[-2:]
            margins.append(row[first] - row[second])
            tokens.append(int(first))
        return np.array(tokens[len(prompt) :], np.int32), np.array(margins, np.float32)


def sinkhorn(logits, iterations, eps):
    """[T, n, n]: rows by softmax, then columns and rows in turn; the last step is a column step."""
    m = softmax(logits, -1) + eps
    m = m / (m.sum(1, keepdims=True) + eps)
    for _ in range(iterations - 1):
        m = m / (m.sum(2, keepdims=True) + eps)
        m = m / (m.sum(1, keepdims=True) + eps)
    return m


def delta_rule(q, k, v, g, beta):
    """The gated delta rule, [T, H, d]; the state [H, key, value] starts at zero."""
    tokens, h, d = q.shape
    state = np.zeros((h, d, v.shape[-1]))
    o = np.empty_like(v)
    for t in range(tokens):
        state = np.exp(g[t])[:, :, None] * state
        change = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state = state + k[t][:, :, None] * change[:, None, :]
        o[t] = np.einsum("hkv,hk->hv", state, q[t])
    return o
