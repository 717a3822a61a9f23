"""Every op of a folded layer again in plain float32: the truth that the kernels are tested against.

Ancestors are powers of a matrix, rows are picked by products with one-hot rows, and a softmax runs over all of a row's
keys at once. Arguments may have any dtype and are finite; results are float32.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int, Shaped

from pallas_kernels.attention import SoftmaxState
from pallas_kernels.contraction import contract
from pallas_kernels.correction import Correction
from pallas_kernels.head_norm import HeadNorm
from pallas_kernels.likeliest import Likeliest
from pallas_kernels.rows import BY_RESIDUAL, FORCED, RowPlan


def plan_rows(
    residual: Float[Array, "groups rows"],
    rule: Int[Array, "groups rows"],
    delta: Float[Array, ""],
    parents: Int[Array, "groups rows"],
) -> RowPlan:
    """`pallas_kernels.rows.plan_rows`, for chains of any length."""
    row = jnp.arange(residual.shape[1])
    recomputed = (rule == FORCED) | ((rule == BY_RESIDUAL) & (residual > delta))
    ancestry = _one_hot(jnp.where(recomputed, row, parents), row.size)
    for _ in range(row.size.bit_length()):
        ancestry = contract("gij,gjk->gik", ancestry, ancestry)
    source = jnp.argmax(ancestry, axis=-1)
    before = _computed_before(recomputed, jnp.broadcast_to(row, source.shape))
    stands = recomputed[:, None] & (before[:, None] == row[:, None])
    return RowPlan(
        recomputed,
        source,
        jnp.sum(jnp.where(stands, row, 0), axis=-1),
        _computed_before(recomputed, source),
        jnp.sum(recomputed, axis=1),
    )


def normed_rows(
    hidden: Float[Array, "groups rows size"],
    added: Float[Array, "groups rows size"] | None,
    weight: Float[Array, " size"],
    eps: float,
    plan: RowPlan | None,
    *,
    places: int | None = None,
) -> Float32[Array, "groups places size"]:
    """`pallas_kernels.projection.normed_rows`; places behind the plan's last row hold row 0."""
    stream = _float32(hidden) if added is None else _float32(hidden) + _float32(added)
    rows = stream if plan is None else _picked(stream, plan.index[:, :places])
    return rows / jnp.sqrt(jnp.mean(rows**2, axis=-1, keepdims=True) + eps) * _float32(weight)


def relative_residual(
    hidden: Float[Array, "groups rows size"], parents: Int[Array, "groups rows"]
) -> Float32[Array, "groups rows"]:
    """`pallas_kernels.rows.relative_residual`, of rows whose parents are not 0."""
    parent = _picked(_float32(hidden), parents)
    return jnp.linalg.norm(_float32(hidden) - parent, axis=-1) / jnp.linalg.norm(parent, axis=-1)


def add_through(
    hidden: Float[Array, "groups rows size"],
    attended: Float[Array, "groups rows size"],
    fed: Float[Array, "groups places size"],
    plan: RowPlan | None,
    parents: Int[Array, "groups rows"] | None,
) -> tuple[Float32[Array, "groups rows size"], Float32[Array, "groups rows"] | None]:
    """`pallas_kernels.feed_forward.add_through`."""
    read = _float32(fed) if plan is None else _picked(_float32(fed), plan.slot)
    summed = _float32(hidden) + _float32(attended) + read
    return summed, None if parents is None else relative_residual(summed, parents)


def rotated_heads(
    products: Float[Array, "places kv_heads group_key_value head_dim"],
    bias: Float[Array, "kv_heads group_key_value head_dim"] | None,
    index: Int[Array, " rows"] | None,
    cos: Float[Array, "batch slots half"],
    sin: Float[Array, "batch slots half"],
    branches: int,
    norm: HeadNorm | None = None,
) -> Float32[Array, "places kv_heads group_key_value head_dim"]:
    """`pallas_kernels.triton.projection.rotated_heads`, of all places: each pair (x[i], x[i + size/2]) is a complex
    number, which is turned.
    """
    given = _float32(products) if bias is None else _float32(products) + _float32(bias)
    heads = given
    if norm is not None:
        scale = jnp.sqrt(jnp.mean(given**2, axis=-1, keepdims=True) + norm.eps)
        weight = jnp.where(jnp.arange(given.shape[2])[:, None] < given.shape[2] - 2, norm.query, norm.key)
        heads = given / scale * _float32(weight)
    row = jnp.arange(heads.shape[0]) if index is None else index[: heads.shape[0]]
    text, slot = row // (branches * cos.shape[1]), row % cos.shape[1]
    low, high = jnp.split(heads, 2, axis=-1)
    turned = jax.lax.complex(low, high) * jax.lax.complex(cos, sin)[text, slot][:, None, None]
    return jnp.concatenate([turned.real, turned.imag], axis=-1).at[:, :, -1].set(given[:, :, -1])


def branch_attention(
    rotated: Float[Array, "places kv_heads group_key_value head_dim"],
    slot: Int[Array, "batch branches slots"] | None,
    keys: Float[Array, "batch kv_heads capacity head_dim"],
    values: Float[Array, "batch kv_heads capacity head_dim"],
    lengths: Int[Array, " batch"],
    starts: Int[Array, " batch"],
    scale: Float[Array, "batch slots"],
    visible: Int[Array, "batch branches slots"],
    *,
    append: bool = False,
) -> tuple[Float32[Array, "batch branches slots kv_heads group head_dim"], Array, Array]:
    """`pallas_kernels.triton.attention.branch_attention`."""
    slots, places = visible.shape[2], rotated.shape[0]
    if slot is None:
        slot = jnp.arange(places).reshape(visible.shape)
    rows = contract("bxsp,pkhd->bkxshd", _one_hot(slot, places), _float32(rotated))
    queries, own_keys, own_values = rows[..., :-2, :], rows[..., -2, :], rows[..., -1, :]

    cached = jnp.arange(keys.shape[2])
    replaced = (cached >= starts[:, None]) & (cached < starts[:, None] + slots)
    seen_cached = jnp.broadcast_to(
        ((cached < lengths[:, None]) & ~replaced)[:, None, None], (*visible.shape, cached.size)
    )
    seen = jnp.concatenate([seen_cached, jnp.arange(slots) < visible[..., None]], axis=-1)
    all_keys, all_values = _with_cache(keys, own_keys), _with_cache(values, own_values)
    scores = contract("bkxsgd,bkxtd->bkxsgt", queries, all_keys) * _float32(scale)[:, None, None, :, None, None]
    weights = jax.nn.softmax(jnp.where(seen[:, None, :, :, None], scores, -jnp.inf), axis=-1)
    mixed = jnp.moveaxis(contract("bkxsgt,bkxtd->bkxsgd", weights, all_values), 1, 3)
    if not append:
        return mixed, own_keys, own_values

    def appended(cache: Array, own: Array) -> Array:
        new = contract("bct,bktd->bkcd", _one_hot(cached - starts[:, None], slots), own[:, :, 0])
        return jnp.where(replaced[:, None, :, None], new, _float32(cache))

    return mixed, appended(keys, own_keys), appended(values, own_values)


def correct_state(
    ancestor: SoftmaxState,
    queries: Float[Array, "batch branches slots kv_heads group head_dim"],
    keys: Float[Array, "batch branches slots kv_heads head_dim"],
    values: Float[Array, "batch branches slots kv_heads head_dim"],
    source: Int[Array, "batch branches slots"],
    seen: Bool[Array, "batch branches slots keys"],
) -> Correction:
    """`pallas_kernels.correction.correct_state` as one softmax over the ancestor, which is a single key of its whole
    mass, the keys that go out, of negative mass, and those that come in.
    """
    queries, keys, values = map(_float32, (queries, keys, values))
    branch = _one_hot(source, keys.shape[1])
    of_source = contract("bxsy,byt->bxst", branch, _float32(source))
    changed = ((of_source != source[:, :, None]) & seen)[:, :, :, None, None]
    keys_of_source, values_of_source = (contract("bxsy,bytkd->bxstkd", branch, table) for table in (keys, values))
    scale = queries.shape[-1] ** -0.5
    goes = contract("bxskgd,bxstkd->bxskgt", queries, keys_of_source) * scale
    comes = contract("bxskgd,bxtkd->bxskgt", queries, keys) * scale

    top = jnp.maximum(ancestor.max, jnp.max(jnp.where(changed, comes, -jnp.inf), axis=-1))
    whole = jnp.exp(ancestor.max - top) * ancestor.sum
    removed, added = (jnp.where(changed, jnp.exp(scores - top[..., None]), 0.0) for scores in (goes, comes))
    acc = whole[..., None] * ancestor.acc / ancestor.sum[..., None]
    acc -= contract("bxskgt,bxstkd->bxskgd", removed, values_of_source)
    acc += contract("bxskgt,bxtkd->bxskgd", added, values)
    mass = whole - removed.sum(axis=-1)
    return Correction(SoftmaxState(top, mass + added.sum(axis=-1), acc), mass / whole)


def likeliest(logits: Float32[Array, "rows vocab"], banned: int, ranks: int) -> Likeliest:
    """`pallas_kernels.likeliest.likeliest` from sorted rows, of which at least `ranks` logits are finite."""
    allowed = jnp.where(_one_hot(jnp.array(banned), logits.shape[1]) > 0, -jnp.inf, logits)
    order = jnp.argsort(-allowed, axis=-1, stable=True)
    falling = jnp.take_along_axis(allowed, order, axis=-1)
    shares = jnp.exp(falling - falling[:, :1])
    return Likeliest(order[:, :ranks], falling[:, :ranks], falling[:, 0] + jnp.log(jnp.sum(shares, axis=-1)))


def _float32(x: Shaped[Array, "*shape"]) -> Float32[Array, "*shape"]:
    return x.astype(jnp.float32)


def _one_hot(index: Int[Array, "*of"], size: int) -> Float32[Array, "*of size"]:
    """Rows of zeros where an index is out of range."""
    return (index[..., None] == jnp.arange(size)).astype(jnp.float32)


def _picked(table: Float[Array, "groups rows size"], index: Int[Array, "groups places"]) -> Array:
    return contract("gpr,grs->gps", _one_hot(index, table.shape[1]), table)


def _computed_before(recomputed: Bool[Array, "groups rows"], row: Int[Array, "groups rows"]) -> Array:
    """Of every row how many computed ones stand before it."""
    return jnp.sum(recomputed[:, None] & (jnp.arange(recomputed.shape[1]) < row[..., None]), axis=-1)


def _with_cache(
    cache: Float[Array, "batch kv_heads capacity head_dim"],
    own: Float[Array, "batch kv_heads branches slots head_dim"],
) -> Float32[Array, "batch kv_heads branches keys head_dim"]:
    """For every branch the cached tokens, then its own."""
    shape = (*own.shape[:3], cache.shape[2], cache.shape[3])
    return jnp.concatenate([jnp.broadcast_to(_float32(cache)[:, :, None], shape), own], axis=3)
