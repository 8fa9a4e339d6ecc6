#include "tests/support/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti::test {
namespace {

using Complex = std::complex<double>;

bool is_exact(DType t) { return !is_differentiable(t); }

std::string at(const Tensor& t, int64_t flat) {
  std::string text = "]";
  for (size_t d = t.sizes().size(); d-- > 0; flat /= std::max<int64_t>(t.sizes()[d], 1))
    text = (d ? ", " : "[") + std::to_string(flat % t.sizes()[d]) + text;
  return t.dim() == 0 ? "[]" : text;
}

std::string print(Complex v, bool complex) {
  return complex ? fmt::format("({:.17g}, {:.17g})", v.real(), v.imag()) : fmt::format("{:.17g}", v.real());
}

bool close_part(double got, double expected, double tolerance) {
  if (std::isnan(got) || std::isnan(expected)) return std::isnan(got) && std::isnan(expected);
  if (std::isinf(got) || std::isinf(expected)) return got == expected;
  return std::abs(got - expected) <= tolerance;
}

testing::AssertionResult comparable(const Tensor& got, const Tensor& expected) {
  if (!got.defined() || !expected.defined())
    return testing::AssertionFailure() << "got " << describe(got) << ", expected " << describe(expected);
  if (!(got.sizes() == expected.sizes()))
    return testing::AssertionFailure() << "got " << describe(got) << ", expected " << describe(expected);
  return testing::AssertionSuccess();
}

bool same_bits(const std::byte* a, const std::byte* b, DType dtype) {
  if (std::memcmp(a, b, size_of(dtype)) == 0) return true;
  return with_type(dtype, [&]<class T>() {
    T x, y;
    std::memcpy(&x, a, sizeof x);
    std::memcpy(&y, b, sizeof y);
    if constexpr (std::same_as<T, std::complex<float>> || std::same_as<T, std::complex<double>>) {
      auto same = [](auto p, auto q) { return (std::isnan(p) && std::isnan(q)) || std::memcmp(&p, &q, sizeof p) == 0; };
      return same(x.real(), y.real()) && same(x.imag(), y.imag());
    } else {
      return x != x && y != y;
    }
  });
}

}  // namespace

testing::AssertionResult close(const Tensor& got, const Tensor& expected, double relative) {
  if (auto result = comparable(got, expected); !result) return result;
  if (is_exact(got.dtype()) && is_exact(expected.dtype())) {
    auto a = got.to_vector<int64_t>(), b = expected.to_vector<int64_t>();
    for (size_t i = 0; i < a.size(); ++i)
      if (a[i] != b[i])
        return testing::AssertionFailure() << "element " << at(got, static_cast<int64_t>(i)) << " of " << describe(got)
                                           << " is " << a[i] << ", expected " << b[i];
    return testing::AssertionSuccess();
  }
  auto a = got.to_vector<Complex>(), b = expected.to_vector<Complex>();
  bool complex = got.is_complex() || expected.is_complex();
  double largest = 0;
  for (Complex v : b)
    if (std::isfinite(std::abs(v))) largest = std::max(largest, std::abs(v));
  for (size_t i = 0; i < a.size(); ++i) {
    double size = std::abs(b[i]), tolerance = relative * ((std::isfinite(size) ? size : 0) + 0.1 * largest);
    if (!close_part(a[i].real(), b[i].real(), tolerance) || !close_part(a[i].imag(), b[i].imag(), tolerance))
      return testing::AssertionFailure() << "element " << at(got, static_cast<int64_t>(i)) << " of " << describe(got)
                                         << " is " << print(a[i], complex) << ", expected " << print(b[i], complex)
                                         << " (off by " << std::abs(a[i] - b[i]) << ", allowed " << tolerance << ")";
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult identical(const Tensor& got, const Tensor& expected) {
  if (auto result = comparable(got, expected); !result) return result;
  if (got.dtype() != expected.dtype())
    return testing::AssertionFailure() << "got " << describe(got) << ", expected " << describe(expected);
  Tensor a = got.detach().contiguous(), b = expected.detach().contiguous();
  auto* p = static_cast<const std::byte*>(a.raw_data());
  auto* q = static_cast<const std::byte*>(b.raw_data());
  size_t step = size_of(a.dtype());
  for (int64_t i = 0; i < a.numel(); ++i, p += step, q += step)
    if (!same_bits(p, q, a.dtype())) {
      Tensor x = a.view({-1}).select(0, i), y = b.view({-1}).select(0, i);
      return testing::AssertionFailure() << "element " << at(a, i) << " of " << describe(a) << " is "
                                         << print(x.item<Complex>(), a.is_complex()) << ", expected the bits of "
                                         << print(y.item<Complex>(), a.is_complex());
    }
  return testing::AssertionSuccess();
}

testing::AssertionResult same_form(const Tensor& got, const Tensor& expected) {
  if (auto result = comparable(got, expected); !result) return result;
  if (got.dtype() != expected.dtype() || !(got.strides() == expected.strides()))
    return testing::AssertionFailure() << "got " << describe(got) << " with strides " << to_string(got.strides())
                                       << ", expected " << describe(expected) << " with strides "
                                       << to_string(expected.strides());
  return testing::AssertionSuccess();
}

double precision(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::c128:
      return 1e-10;
    case DType::f32:
    case DType::c64:
      return 1e-5;
    case DType::f16:
      return 0x1p-9;
    case DType::bf16:
      return 0x1p-6;
    default:
      return 0;
  }
}

Tensor fixed_weights(const Tensor& output) {
  std::vector<Complex> values;
  for (int64_t i = 0; i < output.numel(); ++i)
    values.emplace_back(static_cast<double>(i * 7 % 11 - 4) / 8 + 0.0625,
                        output.is_complex() ? static_cast<double>(i * 5 % 7 - 2) / 8 : 0.0);
  return tensor(values, {.dtype = output.dtype()}).view(output.sizes());
}

const char* name(Arrangement arrangement) {
  constexpr const char* names[] = {"contiguous", "transposed", "stepped", "expanded", "channels_last"};
  return names[static_cast<int>(arrangement)];
}

Tensor arrange(const Tensor& x, Arrangement arrangement) {
  NoGrad guard;
  Shape sizes = x.sizes(), backwards;
  auto options = Options{.dtype = x.dtype()};
  for (int64_t d = x.dim(); d-- > 0;) backwards.push_back(d);
  switch (arrangement) {
    case Arrangement::contiguous:
      return x.clone(MemoryFormat::contiguous);
    case Arrangement::transposed: {
      if (x.dim() < 2) return {};
      Tensor storage = empty(permute(x, backwards).sizes(), options);
      return permute(storage, backwards).copy_(x);
    }
    case Arrangement::stepped: {
      // Every other element of a larger tensor, and not from its beginning; what lies between is no number.
      if (x.dim() == 0) return tensor({99, 99, 99}, options).select(0, 1).copy_(x);
      for (auto& s : sizes) s = 2 * s + 1;
      Tensor view = full(sizes, is_exact(x.dtype()) ? Tensor(99) : Tensor(NAN), options);
      for (int64_t d = 0; d < x.dim(); ++d) view = slice(view, d, 1, {}, 2);
      return view.copy_(x);
    }
    case Arrangement::expanded:
      for (int64_t d = 0; d < x.dim(); ++d)
        if (x.size(d) > 1) return expand(narrow(x, d, 0, 1).clone(), sizes);
      return {};
    case Arrangement::channels_last:
      if (x.dim() != 4 && x.dim() != 5) return {};
      return empty(sizes, options, MemoryFormat::channels_last).copy_(x);
  }
  return {};
}

}  // namespace tutti::test
