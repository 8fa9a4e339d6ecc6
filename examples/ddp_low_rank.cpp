// A communication hook of one's own: gradients of matrices travel as products of two thin ones (PowerSGD). What the
// approximation leaves out is kept and added to the next gradient, so that nothing is lost, only late.
#include <cstdio>
#include <map>

#include "flags.h"
#include "tutti/tutti.h"

using namespace tutti;

// Columns become orthogonal and of length one (Gram-Schmidt).
Tensor orthogonal(const Tensor& p) {
  TensorList columns;
  for (Tensor c : p.unbind(1)) {
    for (const Tensor& q : columns) c = c - q * c.dot(q);
    columns.push_back(c / (c.norm() + 1e-8));
  }
  return stack(columns, 1);
}

/// What is kept between steps, for each parameter.
struct LowRank {
  int64_t rank;
  std::map<TensorImpl*, Tensor> rest, q;
  int64_t sent = 0, whole = 0;  // numbers

  std::function<void()> operator()(parallel::GradientBucket& bucket) {
    struct Piece {
      Tensor gradient, matrix, p, q;  // matrix ≈ p · qᵀ
    };
    std::vector<Piece> pieces;
    TensorList thin, small;
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      Tensor gradient = bucket.gradients[i];
      whole += gradient.numel();
      if (gradient.dim() < 2 || gradient.numel() < 64 * rank) {  // biases go as they are
        small.push_back(gradient);
        continue;
      }
      TensorImpl* key = bucket.parameters[i].impl();
      Tensor matrix = gradient.flatten(1);
      if (rest[key].defined()) matrix = matrix + rest[key];
      if (!q[key].defined())  // all ranks must begin with the same
        q[key] = orthogonal(sin(arange(matrix.size(1) * rank).to(matrix.dtype())).view({-1, rank}));
      pieces.push_back({gradient, matrix, matmul(matrix, q[key]), q[key]});
      thin.push_back(pieces.back().p);
      sent += pieces.back().p.numel() + q[key].numel();
    }
    for (const Tensor& t : small) sent += t.numel();
    Work one = all_reduce_async(thin, bucket.average), two = all_reduce_async(small, bucket.average);
    return [this, &bucket, pieces, one, two]() mutable {
      one.wait();
      TensorList thin;
      for (Piece& piece : pieces) {
        piece.p = orthogonal(piece.p);
        piece.q = matmul(piece.matrix.t(), piece.p);
        thin.push_back(piece.q);
      }
      all_reduce(thin, bucket.average);
      for (size_t i = 0, k = 0; i < bucket.gradients.size() && k < pieces.size(); ++i) {
        Piece& piece = pieces[k];
        if (!piece.gradient.is_same(bucket.gradients[i])) continue;
        ++k;
        TensorImpl* key = bucket.parameters[i].impl();
        q[key] = piece.q;
        Tensor found = matmul(piece.p, piece.q.t());
        rest[key] = piece.matrix - found;
        piece.gradient.copy_(found.view(piece.gradient.sizes()));
      }
      two.wait();
    };
  }
};

// The loss at the end of training, and how large a part of the gradients was sent.
std::pair<double, double> train(int ranks, int64_t steps, int64_t rank_of_matrices) {
  double loss = 0, part = 1;
  spawn_ranks(ranks, [&] {
    manual_seed(1);
    nn::Sequential net(nn::Linear(32, 128), nn::Tanh(), nn::Linear(128, 128), nn::Tanh(), nn::Linear(128, 8));
    Tensor teacher = randn({32, 8});
    auto low = std::make_shared<LowRank>(LowRank{.rank = rank_of_matrices, .rest = {}, .q = {}});
    parallel::DdpOptions options;
    if (rank_of_matrices > 0) options.hook = [low](parallel::GradientBucket& b) { return (*low)(b); };
    parallel::DistributedDataParallel ddp(net, options);
    optim::SGD sgd(ddp.parameters(), {.lr = 0.1, .momentum = 0.9});
    manual_seed(100 + uint64_t(rank()));
    for (int64_t step = 0; step < steps; ++step) {
      Tensor x = randn({32, 32});
      Tensor error = mse_loss(ddp(x), sin(matmul(x, teacher) / 4));
      sgd.zero_grad();
      error.backward();
      sgd.step();
      if (rank() == 0) loss = loss == 0 ? error.item<double>() : 0.9 * loss + 0.1 * error.item<double>();
    }
    ddp.check_equal();
    if (rank() == 0 && low->whole) part = double(low->sent) / double(low->whole);
  });
  return {loss, part};
}

int main(int argc, char** argv) {
  int64_t ranks = 4, rows = 2, steps = 300;
  flags::Options options("ddp_low_rank", "Sends gradients as products of two thin matrices (PowerSGD).");
  options.number("--ranks", "N", "ranks, which are threads", ranks, 1, 1000);
  options.number("--rank-of-matrices", "N", "columns of the thin matrices", rows, 1);
  options.number("--steps", "N", "steps of training", steps, 1);
  options.parse(argc, argv);

  auto [full, all] = train(int(ranks), steps, 0);
  auto [low, part] = train(int(ranks), steps, rows);
  std::printf("loss %.4f with whole gradients, %.4f with matrices of rank %ld: %.1f %% of the numbers were sent\n",
              full, low, long(rows), 100 * part);
  return low < 4 * full && part < 0.5 ? 0 : 1;
}
