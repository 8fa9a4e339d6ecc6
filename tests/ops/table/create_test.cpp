// Rows of src/ops/create, src/ops/convert, src/ops/complex and src/ops/sparse.
#include "tests/support/table.h"

namespace tutti::test {
namespace {

const bool creation = add_rows({
    row("arange",
        [](In) -> Out { return {arange(5), arange(2, 9, 3), arange(7, 0, -2), arange(0.5, 3.0, 0.75, {f64})}; }, {})
        .takes(kNumber)
        .creates([](Options o) -> Out { return {arange(5, o), arange(9, 2, -3, o), arange(0, 0, 1, o)}; }),
    row("linspace", [](In) -> Out { return {linspace(-1, 2, 7, {f64}), linspace(3, 3, 1, {f64})}; }, {})
        .takes(kNumber)
        .creates([](Options o) -> Out { return {linspace(0, 12, 7, o), linspace(3, 3, 1, o), linspace(1, 2, 0, o)}; }),
    row("eye", [](In) -> Out { return {eye(3), eye(2, 4, {i64})}; }, {}).takes(kNumber).creates([](Options o) -> Out {
      return {eye(3, {}, o), eye(2, 4, o), eye(0, 3, o)};
    }),
    row("zeros", [](In) -> Out { return {zeros({2, 3}), zeros({}, {i64})}; }, {})
        .takes(kNumber)
        .reference([](In) -> Out { return {tensor({{0.0, 0.0, 0.0}, {0.0, 0.0, 0.0}}, {f32}), tensor(0, {i64})}; })
        .creates([](Options o) -> Out { return {zeros({2, 3}, o), zeros({0, 3}, o), zeros({}, o)}; }),
    row("ones", [](In) -> Out { return {ones({1, 2}), ones({}, {i64})}; }, {})
        .takes(kNumber)
        .reference([](In) -> Out { return {tensor({{1.0, 1.0}}, {f32}), tensor(1, {i64})}; })
        .creates([](Options o) -> Out { return {ones({2, 3}, o), ones({0, 3}, o), ones({}, o)}; }),
    row("full", [](In) -> Out { return {full({1, 2}, 2.5), full({2}, 7)}; }, {})
        .takes(kNumber)
        .reference([](In) -> Out { return {tensor({{2.5, 2.5}}, {f32}), tensor({7, 7}, {i64})}; })
        .creates([](Options o) -> Out { return {full({2, 3}, 7, o), full({0, 3}, 7, o), full({}, 1, o)}; }),
    row("tril_indices", [](In) -> Out { return {tril_indices(3, 4), tril_indices(3, 3, -1)}; }, {}),
    row("triu_indices", [](In) -> Out { return {triu_indices(3, 4), triu_indices(3, 3, 1)}; }, {}),
    row("zeros_like", [](In x) -> Out { return {zeros_like(x[0])}; }, {{value({2, 3})}}).takes(kNumber).no_gradient(),
    row("ones_like", [](In x) -> Out { return {ones_like(x[0])}; }, {{value({2, 3})}}).takes(kNumber).no_gradient(),
    row("full_like", [](In x) -> Out { return {full_like(x[0], 1)}; }, {{value({2, 3})}}).takes(kNumber).no_gradient(),
    row("tril", [](In x) -> Out { return {tril(x[0]), tril(x[0], -1)}; }, {{value({3, 4})}, {value({2, 2, 3})}})
        .takes(kNumber),
    row("triu", [](In x) -> Out { return {triu(x[0]), triu(x[0], 1)}; }, {{value({3, 4})}, {value({2, 2, 3})}})
        .takes(kNumber),
});

const bool conversion = add_rows({
    row("cast", [](In x) -> Out { return {cast(x[0], c128)}; }, {{value({2, 3})}, {value({2, 3, 2, 2})}, {value({0})}})
        .takes(kNumber)
        .chooses_dtype(),
    row("cast.real", [](In x) -> Out { return {cast(x[0], f64)}; }, {{value({2, 3})}, {value({})}})
        .takes(kNumber)
        .chooses_dtype(),
    row("copy_to", [](In x) -> Out { return {copy_to(x[0], x[0].device())}; }, {{value({2, 3})}, {value({2, 3, 2, 2})}})
        .speaks_of("device")
        .takes(kNumber),
    row("clone", [](In x) -> Out { return {clone(x[0])}; }, {{value({2, 3})}, {value({2, 3, 2, 2})}}).takes(kNumber),
    row("clone.channels_last", [](In x) -> Out { return {clone(x[0], MemoryFormat::channels_last)}; },
        {{value({2, 3, 2, 2})}})
        .takes(kNumber),
    row("contiguous", [](In x) -> Out { return {contiguous(x[0])}; }, {{value({2, 3})}, {value({2, 3, 2, 2})}})
        .takes(kNumber),
});

const bool complex_parts = add_rows({
    row("real", [](In x) -> Out { return {real(x[0])}; }, {{value({2, 3})}, {value({2, 3, 2, 2})}}).takes(kNumber),
    row("imag", [](In x) -> Out { return {imag(x[0])}; }, {{value({2, 3})}, {value({0, 2})}}).takes(kComplex),
    row("angle", [](In x) -> Out { return {angle(x[0])}; }, {{value({2, 3})}, {value({})}})
        .takes(kNumber)
        .constant_gradient([](In x) { return !x[0].is_complex(); }),
    row("view_as_real", [](In x) -> Out { return {view_as_real(x[0])}; }, {{value({2, 3})}, {value({})}})
        .takes(kComplex),
    row("view_as_complex", [](In x) -> Out { return {view_as_complex(x[0])}; }, {{value({3, 2})}, {value({2, 2, 2})}})
        .takes(kFloat)
        .refuses({bf16, f16})
        .contiguous_only(),
    row("complex", [](In x) -> Out { return {complex(x[0], x[1])}; },
        {{value({2, 3}), value({2, 3})}, {value({2, 1}), value({3})}})
        .takes(kFloat),
});

Tensor two_entries(In x) { return sparse_coo(tensor({{2, 0}, {0, 1}}, {i64}).to(x[0].device()), x[0], {3, 2}); }
// Indices with a duplicate, whose values add up.
Tensor three_entries(In x) { return sparse_coo(tensor({{0, 2, 0}, {1, 0, 1}}, {i64}).to(x[0].device()), x[0], {3, 2}); }

const bool sparse = add_rows({
    row("sparse_coo", [](In x) -> Out { return {to_dense(three_entries(x))}; }, {{value({3})}})
        .takes(kNumber)
        .speaks_of("device"),
    row("to_dense", [](In x) -> Out { return {to_dense(coalesce(three_entries(x)))}; }, {{value({3})}})
        .speaks_of("sparse_coo")
        .speaks_of("device")
        .takes(kNumber),
    row("coalesce", [](In x) -> Out { return {sparse_values(coalesce(three_entries(x)))}; }, {{value({3})}})
        .speaks_of("sparse_coo")
        .speaks_of("device")
        .takes(kNumber)
        .bounded(),
    row("sparse_values", [](In x) -> Out { return {sparse_values(two_entries(x))}; }, {{value({2})}})
        .speaks_of("sparse_coo")
        .speaks_of("device")
        .takes(kNumber),
    row("sparse_indices", [](In x) -> Out { return {sparse_indices(coalesce(three_entries(x)))}; }, {{value({3})}})
        .speaks_of("sparse_coo")
        .speaks_of("device")
        .takes(kNumber)
        .no_gradient()
        .bounded(),
    row("to_sparse", [](In x) -> Out { return {to_dense(to_sparse(x[0])), to_dense(to_sparse(x[0], 1))}; },
        {{value({3, 2})}})
        .takes(kNumber)
        .dynamic(),
});

// Arithmetic of sparse tensors is that of the dense ones.
Tensor of_entries(const Tensor& values) {
  return sparse_coo(tensor({{0, 2, 0}, {1, 0, 1}}, {i64}).to(values.device()), values, {3, 2});
}
template <class F>
Row sparse_row(const char* name, std::vector<Sample> samples, F f,
               std::source_location where = std::source_location::current()) {
  auto body = [f](In x, auto form) {
    Out out;
    for (const Tensor& y : f(form(x[0]), x)) out.push_back(y.is_sparse() ? to_dense(y) : y);
    return out;
  };
  return row(
             name, [=](In x) { return body(x, of_entries); }, std::move(samples), where)
      .reference([=](In x) { return body(x, [](const Tensor& v) { return to_dense(of_entries(v)); }); })
      .speaks_of("sparse_coo")
      .speaks_of("device")
      .bounded();
}
using T = const Tensor&;

const bool sparse_arithmetic = add_rows({
    sparse_row("add.sparse", {{value({3}), value({3, 2})}},
               [](T s, In x) -> Out { return {s + s, s + x[1], x[1] + s, add(s, x[1], 2), add(x[1], s, 2), s + 1}; })
        .bools_differ()
        .takes(kNumber),
    sparse_row("sub.sparse", {{value({3}), value({3, 2})}},
               [](T s, In x) -> Out { return {s - s * 3, s - x[1], x[1] - s, sub(x[1], s, 2), s - 1}; })
        .speaks_of("mul")
        .takes(kNumber & ~kBool),
    sparse_row("mul.sparse", {{value({3}), value({3, 2})}},
               [](T s, In x) -> Out { return {s * s, s * x[1], x[1] * s, s * x[1][0][0], s * 2}; })
        .speaks_of("select")
        .bools_differ()
        .takes(kNumber),
    sparse_row("div.sparse", {{value({3}), value({}, {1, 3})}}, [](T s, In x) -> Out { return {s / x[1], s / 2}; })
        .bools_differ()
        .takes(kNumber),
});

}  // namespace
}  // namespace tutti::test
