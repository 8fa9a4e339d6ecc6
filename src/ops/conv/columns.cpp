// Convolution by matrix products: an image's windows are laid out as the columns of a matrix ("im2col"). It serves f64,
// and f32 where oneDNN has nothing to offer. One image and group at a time, so that the matrix stays small.
#include <algorithm>
#include <memory>

#include "base/parallel.h"
#include "ops/conv/problem.h"
#include "ops/matmul/gemm.h"

namespace tutti::convolution {
namespace {

// Always three spatial dims; those that are missing have size one.
struct Box {
  int64_t d[3] = {1, 1, 1};
  Box(const Shape& s, size_t skip, int64_t fill) {
    std::fill(d, d + 3, fill);
    size_t count = s.size() - skip;
    for (size_t i = 0; i < count; ++i) d[3 - count + i] = s[skip + i];
  }
  int64_t operator[](int i) const { return d[i]; }
  int64_t product() const { return d[0] * d[1] * d[2]; }
};

template <class T>
class Columns {
 public:
  Columns(const Problem& p, const Operands& o)
      : p_(p),
        in_(p.x, 2, 1),
        kernel_(p.w, 2, 1),
        out_(p.y, 2, 1),
        stride_(p.stride, 0, 1),
        padding_(p.padding, 0, 0),
        dilation_(p.dilation, 0, 1),
        channels_(p.w[1]),
        filters_(p.w[0] / p.groups),
        depth_(channels_ * kernel_.product()),
        positions_(out_.product()),
        x_(o.x.data<T>()),
        w_(o.w.data<T>()),
        y_(o.y.data<T>()),
        bias_(o.bias.defined() ? o.bias.data<T>() : nullptr) {}

  void run() {
    if (p_.pass == Pass::weight) std::fill(w_, w_ + p_.w.product(), T(0));
    if (p_.pass == Pass::data) std::fill(x_, x_ + p_.x.product(), T(0));
    // Images are independent of each other, but for the weight's gradient, which adds them up in their order.
    int64_t batch = p_.x[0], grain = p_.pass == Pass::weight ? batch : 1;
    parallel_for(batch, grain, [&](int64_t begin, int64_t end) {
      auto columns = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(depth_ * positions_));
      for (int64_t n = begin; n < end; ++n)
        for (int64_t g = 0; g < p_.groups; ++g) run_group(n, g, columns.get());
    });
  }

 private:
  void run_group(int64_t n, int64_t g, T* columns) {
    T* x = x_ + (n * p_.groups + g) * channels_ * in_.product();
    T* y = y_ + (n * p_.groups + g) * filters_ * positions_;
    T* w = w_ + g * filters_ * depth_;
    switch (p_.pass) {
      case Pass::forward:
        unfold(x, columns);
        for (int64_t f = 0; f < filters_; ++f)
          std::fill(y + f * positions_, y + (f + 1) * positions_, bias_ ? bias_[g * filters_ + f] : T(0));
        return multiply(filters_, positions_, depth_, {w, depth_, 1}, {columns, positions_, 1}, y, 1);
      case Pass::data:
        multiply(depth_, positions_, filters_, {w, 1, depth_}, {y, positions_, 1}, columns, 0);
        return fold(x, columns);
      case Pass::weight:
        unfold(x, columns);
        return multiply(filters_, depth_, positions_, {y, positions_, 1}, {columns, 1, positions_}, w, 1);
    }
  }

  void multiply(int64_t rows, int64_t columns, int64_t depth, products::Matrix a, products::Matrix b, T* c,
                double beta) {
    products::gemm({.dtype = dtype_of<T>,
                    .rows = rows,
                    .columns = columns,
                    .depth = depth,
                    .a = a,
                    .b = b,
                    .c = c,
                    .c_row = columns,
                    .beta = beta});
  }

  // For element k of the kernel, goes through the positions row by row along the last dim, `at` being the first of a
  // row: calls body(at, begin, end, offset), where positions begin..end of the row read the image, position i at
  // offset + i·stride, and the others the padding.
  template <class Body>
  void for_each_run(int64_t k, Body&& body) const {
    int64_t kw = k % kernel_[2], kh = k / kernel_[2] % kernel_[1], kd = k / kernel_[2] / kernel_[1];
    int64_t at = 0;
    for (int64_t d = 0; d < out_[0]; ++d)
      for (int64_t h = 0; h < out_[1]; ++h, at += out_[2]) {
        int64_t in_d = d * stride_[0] - padding_[0] + kd * dilation_[0];
        int64_t in_h = h * stride_[1] - padding_[1] + kh * dilation_[1];
        int64_t first = kw * dilation_[2] - padding_[2];
        bool inside = in_d >= 0 && in_d < in_[0] && in_h >= 0 && in_h < in_[1];
        // Positions begin..end along the width lie inside.
        int64_t begin = first >= 0 ? 0 : (-first + stride_[2] - 1) / stride_[2];
        int64_t end = first >= in_[2] ? 0 : (in_[2] - 1 - first) / stride_[2] + 1;
        begin = std::min(begin, out_[2]);
        end = inside ? std::clamp(end, begin, out_[2]) : begin;
        body(at, begin, end, (in_d * in_[1] + in_h) * in_[2] + first);
      }
  }

  void unfold(const T* x, T* columns) {
    int64_t kernel = kernel_.product();
    parallel_for(depth_, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, positions_)), [&](int64_t from, int64_t to) {
      for (int64_t row = from; row < to; ++row) {
        const T* channel = x + row / kernel * in_.product();
        T* column = columns + row * positions_;
        for_each_run(row % kernel, [&](int64_t at, int64_t begin, int64_t end, int64_t offset) {
          std::fill(column + at, column + at + begin, T(0));
          for (int64_t i = begin; i < end; ++i) column[at + i] = channel[offset + i * stride_[2]];
          std::fill(column + at + end, column + at + out_[2], T(0));
        });
      }
    });
  }

  // Adds the columns up into the image: a channel at a time, as its windows overlap.
  void fold(T* x, const T* columns) {
    int64_t kernel = kernel_.product();
    parallel_for(channels_, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, positions_ * kernel)),
                 [&](int64_t from, int64_t to) {
                   for (int64_t row = from * kernel; row < to * kernel; ++row) {
                     T* channel = x + row / kernel * in_.product();
                     const T* column = columns + row * positions_;
                     for_each_run(row % kernel, [&](int64_t at, int64_t begin, int64_t end, int64_t offset) {
                       for (int64_t i = begin; i < end; ++i) channel[offset + i * stride_[2]] += column[at + i];
                     });
                   }
                 });
  }

  const Problem& p_;
  Box in_, kernel_, out_, stride_, padding_, dilation_;
  int64_t channels_, filters_, depth_, positions_;
  T *x_, *w_, *y_;
  const T* bias_;
};

}  // namespace

void run_columns(const Problem& p, const Operands& o) {
  if (o.x.dtype() == DType::f64)
    Columns<double>(p, o).run();
  else
    Columns<float>(p, o).run();
}

}  // namespace tutti::convolution
