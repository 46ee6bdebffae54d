"""A quantile regression forest as plain arrays.

`quantile-forest` fits the forest; its predict costs about 5 ms a row and its object could only be
pickled. Exported, a forest is a few arrays: evaluation walks all trees of a row at once, and an
artifact needs no pickle.

Each leaf keeps up to `LEAF_SAMPLES` of the training values that fell into it; a quantile is taken
over the pooled samples of all trees, every tree with the same weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from maestroctl.predict.embedding import FloatArray
from maestroctl.predict.gbm import DoubleArray

LEAF_SAMPLES = 5
_MISSING = -1.0
"""What NaN becomes; every real feature of the paper's list is at least 0 or a code."""


@dataclass(frozen=True, slots=True)
class ForestArrays:
    """All trees in one node table.

    Attributes:
        roots: (num_trees,) node of each root.
        feature: (num_nodes,) column tested; -1 = leaf.
        threshold: (num_nodes,) go left when the value is at most this.
        left, right: (num_nodes,) children; for a leaf, `left` is its row of `samples`.
        samples: (num_leaves, LEAF_SAMPLES) evenly spaced order statistics of the leaf's targets.
    """

    roots: npt.NDArray[np.int32]
    feature: npt.NDArray[np.int16]
    threshold: npt.NDArray[np.float32]
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    samples: npt.NDArray[np.float32]

    def predict(self, rows: FloatArray, level: float = 0.5) -> DoubleArray:
        """Quantile `level` of the target per row, (num_rows,)."""
        clean = np.where(np.isnan(rows), np.float32(_MISSING), rows)
        nodes = np.broadcast_to(self.roots, (len(rows), len(self.roots))).copy()
        lines = np.arange(len(rows))[:, None]
        while True:
            tested = self.feature[nodes]
            inner = tested >= 0
            if not inner.any():
                break
            values = clean[lines, np.maximum(tested, 0)]
            step = np.where(values <= self.threshold[nodes], self.left[nodes], self.right[nodes])
            nodes = np.where(inner, step, nodes)
        pooled = self.samples[self.left[nodes]].reshape(len(rows), -1)
        return np.quantile(pooled, level, axis=1).astype(np.float64)

    def to_arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """What an artifact keeps; targets at half precision are exact to 0.1 %."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> ForestArrays:
        """The inverse of `to_arrays`."""
        return cls(**{name: arrays[name] for name in cls.__slots__})


_MOST = 20_000
"""Rows that one tree draws."""


def fit_forest(
    rows: FloatArray,
    target: DoubleArray,
    *,
    num_trees: int = 40,
    max_leaves: int = 600,
    min_leaf: int = 10,
    seed: int = 0,
    num_threads: int = 2,
) -> ForestArrays:
    """Fit `quantile-forest` and export it.

    Args:
        rows: (num_rows, num_features).
        target: (num_rows,), no NaN.
    """
    from quantile_forest import RandomForestQuantileRegressor

    clean = np.where(np.isnan(rows), np.float32(_MISSING), rows)
    forest = RandomForestQuantileRegressor(
        n_estimators=num_trees,
        max_leaf_nodes=max_leaves,
        min_samples_leaf=min_leaf,
        max_features=0.5,
        max_samples=len(rows) if len(rows) <= _MOST else _MOST / len(rows),
        random_state=seed,
        n_jobs=num_threads,
    )
    forest.fit(clean, target)
    return export_forest(forest, clean, target)


def export_forest(forest: Any, rows: FloatArray, target: DoubleArray) -> ForestArrays:
    """Copy a fitted scikit-learn style forest; leaves keep quantiles of the targets in them."""
    roots, feature, threshold, left, right, samples = [], [], [], [], [], []
    num_nodes = num_leaves = 0
    levels = (np.arange(LEAF_SAMPLES) + 0.5) / LEAF_SAMPLES
    for estimator in forest.estimators_:
        tree = estimator.tree_
        is_leaf = tree.children_left < 0
        leaf_rows = np.full(tree.node_count, -1)
        leaf_rows[is_leaf] = num_leaves + np.arange(int(is_leaf.sum()))
        roots.append(num_nodes)
        feature.append(np.where(is_leaf, -1, tree.feature))
        threshold.append(np.where(is_leaf, 0.0, tree.threshold))
        left.append(np.where(is_leaf, leaf_rows, tree.children_left + num_nodes))
        right.append(np.where(is_leaf, 0, tree.children_right + num_nodes))
        fallback = tree.value.reshape(tree.node_count, -1)[:, 0]
        samples.append(_leaf_quantiles(estimator.apply(rows), target, is_leaf, levels, fallback))
        num_nodes += tree.node_count
        num_leaves += int(is_leaf.sum())
    return ForestArrays(
        roots=np.array(roots, dtype=np.int32),
        feature=np.concatenate(feature).astype(np.int16),
        threshold=np.concatenate(threshold).astype(np.float32),
        left=np.concatenate(left).astype(np.int32),
        right=np.concatenate(right).astype(np.int32),
        samples=np.concatenate(samples).astype(np.float16).astype(np.float32),
    )


def _leaf_quantiles(
    leaf_of_row: npt.NDArray[np.int64],
    target: DoubleArray,
    is_leaf: npt.NDArray[np.bool_],
    levels: DoubleArray,
    fallback: DoubleArray,
) -> DoubleArray:
    order = np.lexsort((target, leaf_of_row))
    nodes, sorted_target = leaf_of_row[order], target[order]
    leaves = np.flatnonzero(is_leaf)
    starts = np.searchsorted(nodes, leaves, side="left")
    ends = np.searchsorted(nodes, leaves, side="right")
    out = np.repeat(fallback[leaves][:, None], len(levels), axis=1)
    filled = ends > starts
    width = (ends - starts)[filled, None]
    places = starts[filled, None] + np.minimum((levels * width).astype(np.int64), width - 1)
    out[filled] = sorted_target[places]
    return out
