// Collectives as operators: they take tensors and give new ones, and gradients of any order pass through them, from
// rank to rank. The gradient that a rank gets for its x is that of the sum of all ranks' losses, exactly.
//
//   Tensor y = fn::all_reduce(x);                       // of f(x) on every rank ...
//   (y * y).sum().backward();                           // ... x.grad() counts what x did to all ranks' losses
//   TensorList parts = fn::all_gather(x, {.group = g});
//
// Backward passes make collectives too, in the reverse order of forward: all ranks of the group must run it, and x must
// require a gradient on all of them or on none. They use the group of the forward call, whatever thread they run in.
#pragma once

#include "tutti/autograd.h"
#include "tutti/comm/collectives.h"

namespace tutti::fn {

/// The reduction of all ranks' x. Where several ranks have the largest (smallest) number they share its gradient
/// evenly. Bitwise reductions are for integers, which have no gradient.
Tensor all_reduce(const Tensor& x, const ReduceOptions& options = {});
/// Many tensors in one call, as if they were one.
TensorList all_reduce(const TensorList& xs, const ReduceOptions& options = {});
/// The same on the root; zeros on others (on which backward must run all the same).
Tensor reduce(const Tensor& x, const ReduceOptions& options = {});
/// The root's x. Others' x says of what shape and dtype it is, and gets a gradient of zeros.
Tensor broadcast(const Tensor& x, const RootOptions& options = {});

/// All ranks' x. Where they are not all of one shape, `shapes` says of which they are.
TensorList all_gather(const Tensor& x, const CollectiveOptions& options = {}, const std::vector<Shape>& shapes = {});
/// The same, one behind the other along the first dim; `rows` are each rank's, where they are not the same.
Tensor all_gather_single(const Tensor& x, const CollectiveOptions& options = {}, const Shape& rows = {});
/// The same as all_gather on the root; zeros of these shapes on others.
TensorList gather(const Tensor& x, const RootOptions& options = {}, const std::vector<Shape>& shapes = {});
/// The root's xs[rank]. Others' xs say of what shape and dtype it is, and get gradients of zeros.
Tensor scatter(const TensorList& xs, const RootOptions& options = {});

/// The reduction of all ranks' xs[rank], or of their parts of x, cut along the first dim: evenly, or by `rows`.
Tensor reduce_scatter(const TensorList& xs, const ReduceOptions& options = {});
Tensor reduce_scatter(const Tensor& x, const ReduceOptions& options = {}, const Shape& rows = {});

/// Result k is rank k's xs[rank], of the shape of xs[k] unless `shapes` says otherwise.
TensorList all_to_all(const TensorList& xs, const CollectiveOptions& options = {},
                      const std::vector<Shape>& shapes = {});
/// The same with parts of one tensor, cut along the first dim: evenly, or as the splits say.
Tensor all_to_all_single(const Tensor& x, const Shape& output_splits = {}, const Shape& input_splits = {},
                         const CollectiveOptions& options = {});
Tensor all_to_all_single(const Tensor& x, const Tensor& output_splits, const Tensor& input_splits,
                         const CollectiveOptions& options = {});

/// Gradients of a function that has collectives in it, against central differences: all ranks call it, each with its
/// own inputs; each number of each rank is moved in turn, and what all ranks' outputs do is compared. Throws (or
/// returns false) on all ranks alike.
bool gradcheck(const std::function<TensorList(const TensorList&)>& f, const TensorList& inputs,
               const GradcheckOptions& options = {}, const Group& group = {});
/// The same for second derivatives.
bool gradgradcheck(const std::function<TensorList(const TensorList&)>& f, const TensorList& inputs,
                   const GradcheckOptions& options = {}, const Group& group = {});

}  // namespace tutti::fn
