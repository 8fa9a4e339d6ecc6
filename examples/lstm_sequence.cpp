// An LSTM learns to add. It sees two binary numbers, lowest bits first, and writes their sum as it goes: what it has to
// remember is the carry. Trained on numbers of 2 to 12 bits, it adds numbers of 40.
#include <cstdio>

#include "flags.h"
#include "learned.h"
#include "tutti/tutti.h"

using namespace tutti;

struct Batch {
  Tensor bits;     // f32 [time, batch, 2]: one bit of each number
  Tensor sum;      // f32 [time, batch]
  Tensor lengths;  // i64 [batch]
  TUTTI_FIELDS(bits, sum, lengths)
};

Batch make_batch(int64_t size, int64_t shortest, int64_t longest) {
  Tensor bits = randint(0, 2, {longest, size, 2});
  Tensor lengths = randint(shortest, longest + 1, {size});
  Tensor inside = arange(longest).unsqueeze(1) < lengths - 1;  // the highest bit is left to the last carry
  bits = bits * inside.unsqueeze(-1).to(i64);
  TensorList sum;
  Tensor carry = zeros({size}, {.dtype = i64});
  for (int64_t t = 0; t < longest; ++t) {
    Tensor total = bits[t].sum(-1) + carry;
    sum.push_back(total % 2);
    carry = (total >= 2).to(i64);
  }
  return {bits.to(f32), stack(sum).to(f32), lengths};
}

struct Adder : nn::Module<Adder> {
  nn::LSTM lstm{2, 24};
  nn::Linear head{24, 1};
  TUTTI_FIELDS(lstm, head)
  // The logits of the sum's bits, [time, batch].
  Tensor forward(const Batch& batch) { return head(lstm(batch.bits, LstmState{}, batch.lengths).output).squeeze(-1); }
};

// Bits that count: those within the length of each pair.
Tensor mask(const Batch& batch) { return (arange(batch.sum.size(0)).unsqueeze(1) < batch.lengths).to(f32); }

std::string number(const Tensor& bits) {
  std::string text;
  for (int64_t bit : bits.to(i64).to_vector<int64_t>()) text.insert(text.begin(), bit ? '1' : '0');
  return text;
}

int main(int argc, char** argv) {
  int64_t steps = 1000;
  flags::Options options("lstm_sequence", "An LSTM learns to add binary numbers.");
  options.number("--steps", "N", "steps of training", steps, 1);
  options.parse(argc, argv);

  manual_seed(3);
  Adder adder;
  optim::Adam adam(adder.parameters(), {.lr = 1e-2});
  optim::Scheduler schedule(adam, optim::cosine(steps));
  Learned learned;
  Progress bar(steps, {.label = "learning to add"});
  for (int64_t step = 0; step < steps; ++step) {
    Batch batch = make_batch(64, 2, 12);
    Tensor each = binary_cross_entropy_with_logits(adder(batch), batch.sum, {.reduction = Reduction::none});
    Tensor loss = (each * mask(batch)).sum() / mask(batch).sum();
    adam.zero_grad();
    loss.backward();
    optim::clip_grad_norm_(adder.parameters(), 1.0);
    adam.step();
    schedule.step();
    bar.step({{"loss", learned.add(loss.item<double>())}});
  }
  bar.finish();

  NoGrad no_grad;
  Batch test = make_batch(500, 40, 40);
  Tensor guess = (adder(test) > 0).to(f32);
  Tensor right = (guess == test.sum).to(f32).mean(0) == 1.0;
  for (int64_t i = 0; i < 3; ++i)
    std::printf("  %s\n+ %s\n= %s  %s\n\n", number(test.bits.select(2, 0).select(1, i)).c_str(),
                number(test.bits.select(2, 1).select(1, i)).c_str(), number(guess.select(1, i)).c_str(),
                right[i].item<bool>() ? "right" : "wrong");
  std::printf("%.1f %% of 500 sums of 40 bits are right in every bit\n", right.to(f32).mean().item<double>() * 100);
  return learned.status();
}
