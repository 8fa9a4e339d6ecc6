#pragma once

#include "tutti/graph/ir.h"

namespace tutti::graph {

/// Note [Step contract]
/// Ranks whose graphs call different collectives would wait for each other for ever. When a function has been traced
/// for the first time, the ranks of each group that its graph uses tell each other what they have called, and compare:
/// a rank that made one call less than the others meets their next call here, where both see at once that they differ;
/// and ranks whose graphs differ throw a MismatchError that shows the first difference, with the lines of both. From
/// then on graphs run unasked. A collective. Tracing is running, so what a function calls in its first run is called as
/// in eager, before this: a rank that calls nothing at all leaves the others waiting there, and their error names the
/// function.
void check_contract(const Graph& graph);

}  // namespace tutti::graph
