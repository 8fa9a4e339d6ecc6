// Making sparse COO tensors, taking them apart, and turning them dense and back.
#include "ops/sparse/sparse.h"

#include <cstring>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/sparse/coalesce.h"
#include "tensor/call.h"
#include "tensor/defined.h"
#include "tutti/operator.h"

namespace tutti {
namespace {

struct Form {
  Shape sizes;
  bool coalesced, trusted;  // trusted: the indices are known to be inside of sizes
  TUTTI_FIELDS(sizes, coalesced, trusted)
};
struct Target {
  DType dtype;
  Device device;
  TUTTI_FIELDS(dtype, device)
};
struct SparseDims {
  int64_t count;
  TUTTI_FIELDS(count)
};
struct Gather {
  bool from_sparse;
  TUTTI_FIELDS(from_sparse)
};

TensorSpec like(const Tensor& x) { return {.sizes = x.sizes(), .dtype = x.dtype(), .device = x.device()}; }

void check_bounds(const Tensor& indices, const Shape& sizes) {
  int64_t dims = indices.size(0), n = indices.size(1), s0 = indices.stride(0), s1 = indices.stride(1);
  if (indices.numel() == 0) return;
  const auto* p = indices.data<int64_t>();
  for (int64_t d = 0; d < dims; ++d)
    for (int64_t i = 0; i < n; ++i) {
      int64_t at = p[d * s0 + i * s1];
      check<IndexError>(at >= 0 && at < sizes[static_cast<size_t>(d)], "sparse_coo",
                        "index {} of entry {} is out of range for dim {} of {}", at, i, d, sizes);
    }
}

const Operator sparse_coo_op{
    .name = "sparse_coo",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          out[0] = {.sizes = c.as<Form>().sizes, .dtype = c.input(1).dtype(), .device = c.input(1).device()};
        },
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Form>();
          if (!a.trusted) check_bounds(c.input(0), a.sizes);
          c.output() = make_sparse(c.input(0).detach(), c.input(1).detach(), a.sizes, a.coalesced);
        },
    .meta =
        [](const Call& c) {
          const auto& a = c.as<Form>();
          c.output() = make_sparse(c.input(0).detach(), c.input(1).detach(), a.sizes, a.coalesced);
        },
    .gradient =
        [](GradientCall& c) {
          c.input(1);  // whose memory the result shares: not if it was written since
          if (c.needs(1)) c.set(1, sparse_gather(c.grad(), c.input(0)));
        },
    .saves_inputs = 3,
    .dynamic_shape = true,
    .sparse = true,
};

Tensor trusted_coo(const Tensor& indices, const Tensor& values, const Shape& sizes, bool coalesced) {
  Form a{sizes, coalesced, true};
  return call(sparse_coo_op, {&indices, &values}, attributes(a));
}

const Operator sparse_values_op{
    .name = "sparse_values",
    .infer = [](const Call& c, std::span<TensorSpec> out) { out[0] = like(sparse_parts(c.input(0)).values); },
    .cpu = [](const Call& c) { c.output() = sparse_parts(c.input(0)).values.detach(); },
    .meta = [](const Call& c) { c.output() = sparse_parts(c.input(0)).values.detach(); },
    .gradient =
        [](GradientCall& c) {
          Tensor x = c.input(0);
          check<GradError>(!has_duplicates(x), "sparse_values",
                           "{} has several entries at one position, which have no gradients of their own; coalesce() "
                           "it before taking values()",
                           x);
          c.set(0, sparse_with_values(x, c.grad()));
        },
    .saves_inputs = 1,
    .dynamic_shape = true,
    .sparse = true,
};

const Operator sparse_indices_op{
    .name = "sparse_indices",
    .infer = [](const Call& c, std::span<TensorSpec> out) { out[0] = like(sparse_parts(c.input(0)).indices); },
    .cpu = [](const Call& c) { c.output() = sparse_parts(c.input(0)).indices.detach(); },
    .meta = [](const Call& c) { c.output() = sparse_parts(c.input(0)).indices.detach(); },
    .dynamic_shape = true,
    .sparse = true,
};

// Duplicates are added up before they become another dtype, as if the tensor were dense.
Tensor with_dtype_summed(const Tensor& x, DType dtype) { return x.dtype() == dtype ? x : coalesced(x); }

const Operator sparse_copy_op{
    .name = "copy",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const auto& a = c.as<Target>();
          check<DeviceError>(!c.input(0).device().is_meta() || a.device.is_meta(), "copy",
                             "{} has no values to copy to {}", c.input(0), a.device);
          out[0] = {.sizes = c.input(0).sizes(), .dtype = a.dtype, .device = a.device};
        },
    .cpu =
        [](const Call& c) {
          const auto& a = c.as<Target>();
          Tensor x = with_dtype_summed(c.input(0), a.dtype);
          const SparseParts& from = sparse_parts(x);
          Tensor indices = make_tensor(from.indices.sizes(), DType::i64, a.device);
          Tensor values = make_tensor(from.values.sizes(), a.dtype, a.device);
          copy_into(indices, from.indices);
          copy_into(values, from.values);
          c.output() = make_sparse(indices, values, c.input(0).sizes(), from.coalesced);
        },
    .meta =
        [](const Call& c) {
          const auto& a = c.as<Target>();
          Tensor x = with_dtype_summed(c.input(0), a.dtype);
          const SparseParts& from = sparse_parts(x);
          c.output() =
              make_sparse(make_tensor(from.indices.sizes(), DType::i64, a.device),
                          make_tensor(from.values.sizes(), a.dtype, a.device), c.input(0).sizes(), from.coalesced);
        },
    .gradient =
        [](GradientCall& c) {
          Tensor g = c.grad();
          c.set(0, g.device() == c.input_device(0) ? g : copy_to(g, c.input_device(0)));
        },
    .dynamic_shape = true,
    .sparse = true,
};

const Operator coalesce_op{
    .name = "coalesce",
    .infer = [](const Call& c, std::span<TensorSpec> out) { out[0] = like(c.input(0)); },
    .cpu = [](const Call& c) { c.output() = coalesced(c.input(0)); },
    .meta = [](const Call& c) { c.output() = coalesced(c.input(0)); },
    .gradient = [](GradientCall& c) { c.set(0, c.grad()); },
    .dynamic_shape = true,
    .sparse = true,
};

const Operator to_dense_op{
    .name = "to_dense",
    .infer = [](const Call& c, std::span<TensorSpec> out) { out[0] = like(c.input(0)); },
    .cpu =
        [](const Call& c) {
          if (c.output().numel() == 0) return;
          auto* out = static_cast<std::byte*>(c.output().raw_data());
          std::memset(out, 0, static_cast<size_t>(c.output().numel()) * c.output().element_size());
          Tensor x = coalesced(c.input(0));
          auto positions = entry_positions(sparse_parts(x).indices, x.sizes());
          Tensor values = sparse_parts(x).values.contiguous();
          size_t row = row_bytes(values);
          if (values.numel() == 0) return;
          const auto* from = static_cast<const std::byte*>(values.raw_data());
          for_rows(values.size(0), row, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i)
              std::memcpy(out + static_cast<size_t>(positions[static_cast<size_t>(i)]) * row,
                          from + static_cast<size_t>(i) * row, row);
          });
        },
    .gradient = [](GradientCall& c) { c.set(0, c.grad()); },
    .sparse = true,
};

template <class T>
bool any_nonzero(const std::byte* row, int64_t width) {
  const T* p = reinterpret_cast<const T*>(row);
  for (int64_t i = 0; i < width; ++i)
    if (!(p[i] == T(0))) return true;  // NaN counts
  return false;
}

const Operator to_sparse_op{
    .name = "to_sparse",
    .infer = [](const Call& c, std::span<TensorSpec> out) { out[0] = like(c.input(0)); },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          Tensor x = c.input(0).detach().contiguous();
          auto dims = static_cast<size_t>(c.as<SparseDims>().count);
          Shape rest, front;
          for (size_t d = 0; d < x.sizes().size(); ++d) (d < dims ? front : rest).push_back(x.sizes()[d]);
          int64_t width = rest.product(), rows = front.product();
          size_t row = static_cast<size_t>(width) * x.element_size();
          const auto* from = x.numel() ? static_cast<const std::byte*>(x.raw_data()) : nullptr;
          std::vector<int64_t> found;
          with_type(x.dtype(), [&]<class T>() {
            for (int64_t i = 0; i < rows && width > 0; ++i)
              if (any_nonzero<T>(from + static_cast<size_t>(i) * row, width)) found.push_back(i);
          });
          auto n = static_cast<int64_t>(found.size());
          Tensor indices = make_tensor({static_cast<int64_t>(dims), n}, DType::i64, x.device());
          rest.insert(0, n);
          Tensor values = make_tensor(rest, x.dtype(), x.device());
          if (n > 0) {
            auto* to = static_cast<std::byte*>(values.raw_data());
            for (size_t i = 0; i < found.size(); ++i)
              std::memcpy(to + i * row, from + static_cast<size_t>(found[i]) * row, row);
            write_indices(found, front, indices);
          }
          c.output() = make_sparse(indices, values, x.sizes(), true);
        },
    // The gradient of the identity; positions without an entry get one too if the gradient that arrives is dense.
    .gradient = [](GradientCall& c) { c.set(0, to_dense(c.grad())); },
    .dynamic_shape = true,
    .sparse = true,
};

// ---- Elements at given positions

void gather_dense(const Tensor& x, const Tensor& indices, const Tensor& out) {
  auto dims = static_cast<size_t>(indices.size(0));
  // Whole rows are copied, so dense dims must lie together; strides of the sparse dims may be anything.
  Tensor source = dims == x.sizes().size() ? x : x.contiguous();
  Tensor at = indices.contiguous();
  size_t row = row_bytes(out);
  int64_t n = indices.size(1);
  const auto* from = static_cast<const std::byte*>(source.raw_data());
  auto* to = static_cast<std::byte*>(out.raw_data());
  const int64_t* p = at.numel() ? at.data<int64_t>() : nullptr;
  auto size = static_cast<int64_t>(x.element_size());
  for_rows(n, row, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t offset = 0;
      for (size_t d = 0; d < dims; ++d) offset += p[static_cast<int64_t>(d) * n + i] * source.strides()[d];
      std::memcpy(to + static_cast<size_t>(i) * row, from + offset * size, row);
    }
  });
}

void gather_sparse(const Tensor& x, const Tensor& indices, const Tensor& out) {
  Tensor source = coalesced(x);
  auto known = entry_positions(sparse_parts(source).indices, x.sizes()), wanted = entry_positions(indices, x.sizes());
  Tensor values = sparse_parts(source).values.contiguous();
  size_t row = row_bytes(out);
  const auto* from = values.numel() ? static_cast<const std::byte*>(values.raw_data()) : nullptr;
  auto* to = static_cast<std::byte*>(out.raw_data());
  for_rows(indices.size(1), row, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      auto it = std::lower_bound(known.begin(), known.end(), wanted[static_cast<size_t>(i)]);
      std::byte* slot = to + static_cast<size_t>(i) * row;
      if (it != known.end() && *it == wanted[static_cast<size_t>(i)])
        std::memcpy(slot, from + static_cast<size_t>(it - known.begin()) * row, row);
      else
        std::memset(slot, 0, row);
    }
  });
}

const Operator sparse_gather_op{
    .name = "sparse_gather",
    .infer =
        [](const Call& c, std::span<TensorSpec> out) {
          const Tensor &x = c.input(0), &indices = c.input(1);
          Shape sizes{indices.size(1)};
          for (int64_t d = indices.size(0); d < x.dim(); ++d) sizes.push_back(x.size(d));
          out[0] = {.sizes = sizes, .dtype = x.dtype(), .device = x.device()};
        },
    .cpu =
        [](const Call& c) {
          NoGrad guard;
          if (c.output().numel() == 0) return;
          (c.as<Gather>().from_sparse ? gather_sparse : gather_dense)(c.input(0), c.input(1), c.output());
        },
    .gradient =
        [](GradientCall& c) {
          if (!c.needs(0)) return;
          Tensor g = trusted_coo(c.input(1), to_dense(c.grad()), c.input_sizes(0), false);
          c.set(0, c.as<Gather>().from_sparse ? g : to_dense(g));
        },
    .saves_inputs = 0b10,
    .sparse = true,
};

void check_sparse(const Tensor& x, const char* name) {
  check_defined(x, name);
  check<ValueError>(x.is_sparse(), name, "{} is not sparse", x);
}

void check_positions(const Shape& sizes) {
  unsigned __int128 product = 1;
  for (int64_t s : sizes) {
    check<ShapeError>(s >= 0, "sparse_coo", "sizes must not be negative: {}", sizes);
    product *= static_cast<unsigned __int128>(s ? s : 1);
    check<ShapeError>(product < (static_cast<unsigned __int128>(1) << 62), "sparse_coo",
                      "{} has more than 2^62 positions", sizes);
  }
}

}  // namespace

Tensor sparse_with_values(const Tensor& x, const Tensor& values) {
  const SparseParts& p = sparse_parts(x);
  return trusted_coo(p.indices, values, x.sizes(), p.coalesced);
}

Tensor sparse_gather(const Tensor& x, const Tensor& indices) {
  Tensor source = x.is_sparse() && sparse_parts(x).indices.size(0) != indices.size(0) ? to_dense(x) : x;
  Gather a{source.is_sparse()};
  return call(sparse_gather_op, {&source, &indices}, attributes(a));
}

Tensor sparse_copy(const Tensor& x, DType dtype, Device device) {
  Target a{dtype, device};
  return call(sparse_copy_op, {&x}, attributes(a));
}

Tensor sparse_coo(const Tensor& indices, const Tensor& values, const Shape& sizes) {
  check_defined(indices, "sparse_coo");
  check_defined(values, "sparse_coo");
  constexpr auto name = "sparse_coo";
  check<ShapeError>(indices.dim() == 2 && indices.dtype() == DType::i64, name,
                    "needs i64 indices of shape [sparse dims, entries], not {}", indices);
  check<ShapeError>(!values.is_sparse() && values.dim() >= 1 && values.size(0) == indices.size(1), name,
                    "needs one value (or row of values) for each of the {} columns of indices {}, not {}",
                    indices.size(1), indices, values);
  auto dims = static_cast<size_t>(indices.size(0)), dense = values.sizes().size() - 1;
  bool fits = sizes.size() == dims + dense;
  for (size_t d = 0; d < dense && fits; ++d) fits = sizes[dims + d] == values.sizes()[d + 1];
  check<ShapeError>(fits, name,
                    "sizes {} do not fit indices {} and values {}: they must be the sparse dims' sizes, then {}", sizes,
                    indices, values, Shape(std::span(values.sizes().data() + 1, dense)));
  check<DeviceError>(indices.device() == values.device(), name, "indices {} and values {} are on different devices",
                     indices, values);
  check_positions(sizes);
  Form a{sizes, false, false};
  return call(sparse_coo_op, {&indices, &values}, attributes(a));
}

Tensor to_dense(const Tensor& x) {
  check_defined(x, "to_dense");
  return x.is_sparse() ? call(to_dense_op, {&x}) : x;
}

Tensor to_sparse(const Tensor& x, std::optional<int64_t> sparse_dims) {
  check_defined(x, "to_sparse");
  SparseDims a{sparse_dims.value_or(x.is_sparse() ? sparse_parts(x).indices.size(0) : x.dim())};
  check<ValueError>(a.count >= 0 && a.count <= x.dim(), "to_sparse", "{} has {} dims; {} of them cannot be sparse", x,
                    x.dim(), a.count);
  if (x.is_sparse() && sparse_parts(x).indices.size(0) == a.count) return x;
  Tensor dense = to_dense(x);
  return call(to_sparse_op, {&dense}, attributes(a));
}

Tensor coalesce(const Tensor& x) {
  check_sparse(x, "coalesce");
  return sparse_parts(x).coalesced ? x : call(coalesce_op, {&x});
}

Tensor sparse_values(const Tensor& x) {
  check_sparse(x, "values");
  Tensor values = call(sparse_values_op, {&x});
  impl(values)->aliased = values.requires_grad();
  return values;
}

Tensor sparse_indices(const Tensor& x) {
  check_sparse(x, "indices");
  return call(sparse_indices_op, {&x});
}

}  // namespace tutti
