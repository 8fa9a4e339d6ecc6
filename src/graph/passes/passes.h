// What is done to a graph before it runs. A pass is a function from a correct graph to an equivalent correct one, in a
// file of its own; verify() looks after each. See Note [Memory in graphs].
#pragma once

#include <optional>

#include "tutti/graph/ir.h"

namespace tutti::graph {

inline size_t at(int32_t index) { return static_cast<size_t>(index); }

/// All passes, in order.
void optimise(Graph& graph);
/// Those that come first and only leave things out.
void tidy(Graph& graph);

/// Removes nodes whose results nobody uses and that have no effect.
void remove_dead_code(Graph& graph);
/// In-place operators on memory of the graph's own, which nobody else sees, become those that give new values.
void functionalise(Graph& graph);
/// What is computed twice from the same values is computed once.
void merge_common(Graph& graph);
/// Copies that change neither values nor layout, of values that are not needed again, are left out.
void remove_copies(Graph& graph);
/// Views that undo each other, and copies that only change a layout for products, which take any, are left out.
void fold_layouts(Graph& graph);
/// Images stay in blocks of channels between convolutions that want them so. See Note [Images in blocks].
void keep_blocks(Graph& graph);
/// batch_norm in blocks does what its neighbours do to its images. See Note [Norms and their neighbours].
void fuse_norms(Graph& graph);
/// Neighbouring small all_reduces of the same kind become one call for many tensors.
void bucket_collectives(Graph& graph);
/// Fills graph.groups, and orders nodes so that those of a group are together.
void find_groups(Graph& graph);
/// Collectives begin as soon as they can and are waited for where they must be. Comes after find_groups().
void overlap_collectives(Graph& graph);
/// Fills graph.plan.
void plan_memory(Graph& graph);

// ---- What forward saves for backward in blocks

/// Makes saved inputs of `backward` such that come in blocks, where that spares reordering.
void choose_saved_blocks(const Graph& forward, Graph& backward);
/// Adds a value that is v in blocks.
ValueId give_in_blocks(Graph& graph, ValueId v);

// ---- What passes share

/// Keeps the nodes that are marked, in order; everything that counts nodes is renumbered.
void keep_nodes(Graph& graph, const std::vector<bool>& keep);
/// Puts nodes in the order given by their numbers; everything that counts nodes is renumbered.
void reorder_nodes(Graph& graph, const std::vector<int32_t>& order);
/// Replaces the value `from` by `to` in nodes and outputs.
void replace_uses(Graph& graph, ValueId from, ValueId to);
/// By memory: whether it is that of an input whose changes can be seen outside.
std::vector<bool> outside_memories(const Graph& graph);
/// By memory: how many values share it.
std::vector<int> shared_memories(const Graph& graph);
/// What the operator's infer says of these inputs; none where it cannot be asked.
std::optional<std::vector<TensorSpec>> infer_types(const Graph& graph, const Node& node);

}  // namespace tutti::graph
