// Tensors as text.
#include <algorithm>
#include <cmath>
#include <ostream>

#include "base/check.h"
#include "tensor/impl.h"
#include "tutti/context.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

constexpr int64_t kSummarise = 1000;  // tensors with more elements than this are summarised
constexpr int64_t kEdge = 3;          // elements shown at each end of a dim then
constexpr size_t kLineWidth = 120;

// How floating-point numbers are written; one style for all that are shown, so that columns agree.
struct Style {
  enum { whole, fixed, scientific } kind = whole;

  void see(double x) {
    if (!std::isfinite(x)) return;
    double size = std::abs(x);
    // Too long, or so small that four decimals would show a zero.
    if (size >= 1e8 || (size > 0 && size < 5e-5)) kind = scientific;
    if (kind == whole && x != std::trunc(x)) kind = fixed;
  }
  std::string write(double x, bool plus = false) const {
    std::string text;
    if (std::isnan(x))
      text = "nan";
    else if (std::isinf(x))
      text = x > 0 ? "inf" : "-inf";
    else
      text = kind == whole   ? fmt::format("{:.0f}.", x)
             : kind == fixed ? fmt::format("{:.4f}", x)
                             : fmt::format("{:.4e}", x);
    return plus && text[0] != '-' ? "+" + text : text;
  }
};

// The elements that are shown, in row-major order, as text of one width. -1 among the indices stands for those left
// out.
class Printer {
 public:
  explicit Printer(const Tensor& t) : tensor_(t), summarise_(t.numel() > kSummarise) {
    with_type(t.dtype(), [&]<class T>() {
      const T* data = t.data<T>();
      for_shown(0, 0, [&](int64_t offset) { see(data[offset]); });
      for_shown(0, 0, [&](int64_t offset) { cells_.push_back(write(data[offset])); });
    });
    for (auto& cell : cells_) width_ = std::max(width_, cell.size());
  }

  std::string text(size_t indent) {
    next_ = 0;
    if (tensor_.dim() == 0) return cells_[0];
    return list(0, indent + 1);
  }

 private:
  std::vector<int64_t> shown(size_t dim) const {
    int64_t size = tensor_.sizes()[dim];
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < size; ++i) {
      if (summarise_ && size > 2 * kEdge && i == kEdge) {
        indices.push_back(-1);
        i = size - kEdge;
      }
      indices.push_back(i);
    }
    return indices;
  }
  template <class Visit>
  void for_shown(size_t dim, int64_t offset, const Visit& visit) const {
    if (dim == tensor_.sizes().size()) return visit(offset);
    for (int64_t i : shown(dim))
      if (i >= 0) for_shown(dim + 1, offset + i * tensor_.strides()[dim], visit);
  }

  template <class T>
  void see(T v) {
    if constexpr (std::is_integral_v<T>) {
      return;
    } else if constexpr (requires { v.real(); }) {
      re_.see(static_cast<double>(v.real()));
      im_.see(static_cast<double>(v.imag()));
    } else {
      re_.see(static_cast<double>(v));
    }
  }
  template <class T>
  std::string write(T v) const {
    if constexpr (std::is_same_v<T, bool>)
      return v ? "true" : "false";
    else if constexpr (std::is_integral_v<T>)
      return fmt::format("{}", static_cast<int64_t>(v));
    else if constexpr (requires { v.real(); })
      return re_.write(static_cast<double>(v.real())) + im_.write(static_cast<double>(v.imag()), true) + "i";
    else
      return re_.write(static_cast<double>(v));
  }

  std::string row(size_t indent) {
    size_t room = kLineWidth > indent + 1 ? kLineWidth - indent - 1 : 1;
    size_t per_line = std::max<size_t>(1, room / (width_ + 2));
    std::string text = "[";
    size_t column = 0;
    for (int64_t i : shown(tensor_.sizes().size() - 1)) {
      if (column > 0) text += column % per_line ? ", " : ",\n" + std::string(indent, ' ');
      text += i < 0 ? "..." : fmt::format("{:>{}}", cells_[next_++], width_);
      ++column;
    }
    return text + "]";
  }
  std::string list(size_t dim, size_t indent) {
    size_t below = tensor_.sizes().size() - dim - 1;
    if (below == 0) return row(indent);
    std::string text = "[", gap = "," + std::string(below, '\n') + std::string(indent, ' ');
    bool first = true;
    for (int64_t i : shown(dim)) {
      if (!first) text += gap;
      first = false;
      text += i < 0 ? "..." : list(dim + 1, indent + 1);
    }
    return text + "]";
  }

  const Tensor& tensor_;
  bool summarise_;
  Style re_, im_;
  std::vector<std::string> cells_;
  size_t width_ = 0, next_ = 0;
};

// The dtype, where a reader cannot guess it from the values.
std::string dtype_note(const Tensor& t) {
  if (t.is_number()) return {};
  DType usual = context().default_dtype;
  if (t.is_complex()) usual = to_complex(usual);
  if (category(t.dtype()) < Category::floating) usual = t.dtype() == DType::boolean ? DType::boolean : DType::i64;
  return t.dtype() == usual ? std::string() : std::string(name(t.dtype()));
}

// " (f64, cpu:1, requires_grad)", of which only what is unusual is said.
std::string suffix(const Tensor& t, const std::string& note) {
  std::string text;
  auto add = [&](const std::string& part) { text += (text.empty() ? " (" : ", ") + part; };
  if (!note.empty()) add(note);
  if (!(t.device() == context().device) && !t.is_number()) add(t.device().str());
  if (t.requires_grad()) add("requires_grad");
  return text.empty() ? text : text + ")";
}

bool is_freed(const Tensor& t) {
  int64_t needed = t.numel() == 0 ? 0 : t.storage_offset() + span_elements(t.sizes(), t.strides());
  return static_cast<size_t>(needed) * t.element_size() > t.storage_bytes();
}

// A dense tensor's values, continued lines indented; empty if there is nothing to show.
std::string values_text(const Tensor& t, size_t indent) {
  if (t.numel() == 0) return "[]";
  NoGrad guard;
  Tensor here = t.device().is_cpu() ? t.detach() : copy_to(t.detach(), Device());
  return Printer(here).text(indent);
}

std::string sparse_text(const Tensor& t) {
  const SparseParts& p = *impl(t)->sparse;
  std::string first = "\n  indices: ", second = "\n  values:  ";
  return fmt::format("sparse {}{} with {} {}{}{}{}{}{}", t.dtype(), t.sizes(), p.values.size(0),
                     p.values.size(0) == 1 ? "entry" : "entries", suffix(t, ""), first,
                     values_text(p.indices, first.size() - 1), second, values_text(p.values, second.size() - 1));
}

}  // namespace

std::string to_string(const Tensor& t) {
  if (!t.defined()) return "undefined";
  if (t.is_sparse() && !t.device().is_meta()) return sparse_text(t);
  if (t.device().is_meta())
    return fmt::format("{}{}{} (meta{})", t.is_sparse() ? "sparse " : "", t.dtype(), t.sizes(),
                       t.requires_grad() ? ", requires_grad" : "");
  if (is_freed(t)) return fmt::format("{}{} (storage freed)", t.dtype(), t.sizes());
  // An empty list does not show its shape.
  bool plain = t.numel() > 0 || (t.dim() == 1 && t.dtype() == context().default_dtype);
  return values_text(t, 0) + suffix(t, plain ? dtype_note(t) : fmt::format("{}{}", t.dtype(), t.sizes()));
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) { return out << to_string(tensor); }

}  // namespace tutti
