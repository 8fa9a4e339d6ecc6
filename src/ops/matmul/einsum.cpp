// einsum: parses the equation and contracts operands pairwise, from left to right, by products and sums of the public
// operators, which also give it its gradients.
#include <algorithm>
#include <array>

#include "amp/policy.h"
#include "base/check.h"
#include "base/named.h"
#include "ops/reduce/reduce.h"
#include "tensor/impl.h"
#include "tutti/ops.h"

namespace tutti {
namespace {

// Labels are letters, 0 ... 51 in the order A-Z, a-z; those above stand for the dims of an ellipsis, the last being the
// last of these dims.
constexpr int kLetters = 52;
constexpr int kEllipsis = 64;
constexpr int kLabels = kLetters + kEllipsis;
using Labels = std::vector<int>;

std::string label_name(int label) {
  if (label >= kLetters) return "...";
  return std::string(1, static_cast<char>(label < 26 ? 'A' + label : 'a' + label - 26));
}

struct Term {
  Tensor x;
  Labels labels;  // one a dim, all different once diagonals are taken

  bool has(int label) const { return std::find(labels.begin(), labels.end(), label) != labels.end(); }
  int64_t dim(int label) const { return std::find(labels.begin(), labels.end(), label) - labels.begin(); }
  int64_t size(int label) const { return x.size(dim(label)); }
};

// ---- Parsing

// The labels of one operand, or of the output. `ellipsis` is how many dims "..." stands for; it returns whether there
// was one.
bool parse_labels(std::string_view text, std::string_view equation, int64_t ellipsis, Labels& labels) {
  bool found = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '.') {
      check<ValueError>(!found && text.substr(i, 3) == "...", "einsum",
                        "'{}' in \"{}\": an ellipsis is three dots, once an operand", text, equation);
      found = true;
      for (int64_t d = ellipsis; d > 0; --d) labels.push_back(kLabels - static_cast<int>(d));
      i += 2;
    } else {
      bool upper = c >= 'A' && c <= 'Z', lower = c >= 'a' && c <= 'z';
      check<ValueError>(upper || lower, "einsum", "'{}' in \"{}\" is not a label: labels are letters", c, equation);
      labels.push_back(upper ? c - 'A' : c - 'a' + 26);
    }
  }
  return found;
}

std::vector<std::string_view> split_operands(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t start = 0;;) {
    size_t comma = text.find(',', start);
    parts.push_back(text.substr(start, comma - start));
    if (comma == std::string_view::npos) return parts;
    start = comma + 1;
  }
}

Term parse_operand(std::string_view text, const Tensor& x, size_t index, std::string_view equation) {
  Labels letters;
  bool ellipsis = parse_labels(text, equation, 0, letters);
  int64_t rest = x.dim() - static_cast<int64_t>(letters.size());
  check<ShapeError>(ellipsis ? rest >= 0 : rest == 0, "einsum", "operand {} is {}, but '{}' in \"{}\" names {}{} dims",
                    index, x, text, equation, ellipsis ? "at least " : "", letters.size());
  check<ShapeError>(rest <= kEllipsis, "einsum", "operand {} ({}) has more than {} dims under its ellipsis", index, x,
                    kEllipsis);
  Term term{x, {}};
  parse_labels(text, equation, rest, term.labels);
  return term;
}

// Without "->": the ellipsis, then every label that occurs once, in alphabetical order.
Labels implicit_output(const std::vector<Term>& terms) {
  std::array<int, kLabels> count{};
  for (auto& term : terms)
    for (int label : term.labels) ++count[static_cast<size_t>(label)];
  Labels output;
  for (int label = kLetters; label < kLabels; ++label)
    if (count[static_cast<size_t>(label)]) output.push_back(label);
  for (int label = 0; label < kLetters; ++label)
    if (count[static_cast<size_t>(label)] == 1) output.push_back(label);
  return output;
}

Labels explicit_output(std::string_view text, std::string_view equation, const std::vector<Term>& terms) {
  int64_t ellipsis = 0;
  for (auto& term : terms)
    ellipsis = std::max<int64_t>(
        ellipsis, std::count_if(term.labels.begin(), term.labels.end(), [](int l) { return l >= kLetters; }));
  Labels output;
  parse_labels(text, equation, ellipsis, output);
  for (size_t i = 0; i < output.size(); ++i) {
    int label = output[i];
    bool known = std::any_of(terms.begin(), terms.end(), [&](const Term& t) { return t.has(label); });
    check<ValueError>(known, "einsum", "label '{}' of the output is in no operand of \"{}\"", label_name(label),
                      equation);
    bool again = std::count(output.begin(), output.end(), label) > 1;
    check<ValueError>(!again, "einsum", "label '{}' is more than once in the output of \"{}\"", label_name(label),
                      equation);
  }
  return output;
}

void check_sizes(const std::vector<Term>& terms, std::string_view equation) {
  std::array<int64_t, kLabels> sizes;
  sizes.fill(1);
  std::array<size_t, kLabels> from{};
  for (size_t i = 0; i < terms.size(); ++i)
    for (size_t d = 0; d < terms[i].labels.size(); ++d) {
      auto label = static_cast<size_t>(terms[i].labels[d]);
      int64_t size = terms[i].x.sizes()[d];
      if (size == 1) continue;
      check<ShapeError>(sizes[label] == 1 || sizes[label] == size, "einsum",
                        "label '{}' has size {} in operand {} and {} in operand {} of \"{}\": {}, {}",
                        label_name(terms[i].labels[d]), sizes[label], from[label], size, i, equation,
                        terms[from[label]].x, terms[i].x);
      sizes[label] = size;
      from[label] = i;
    }
}

// ---- Contracting

// A label that stands twice in an operand takes its diagonal.
void take_diagonals(Term& term, size_t index, std::string_view equation) {
  for (size_t i = 0; i < term.labels.size(); ++i)
    for (size_t j = i + 1; j < term.labels.size(); ++j) {
      if (term.labels[i] != term.labels[j]) continue;
      int label = term.labels[i];
      check<ShapeError>(term.x.sizes()[i] == term.x.sizes()[j], "einsum",
                        "label '{}' stands for sizes {} and {} of operand {} of \"{}\": {}", label_name(label),
                        term.x.sizes()[i], term.x.sizes()[j], index, equation, term.x);
      term.x = diagonal(term.x, 0, static_cast<int64_t>(i), static_cast<int64_t>(j));
      term.labels.erase(term.labels.begin() + static_cast<std::ptrdiff_t>(j));
      term.labels.erase(term.labels.begin() + static_cast<std::ptrdiff_t>(i));
      term.labels.push_back(label);
      return take_diagonals(term, index, equation);
    }
}

// Sums over the labels for which `drop` holds.
template <class Drop>
void sum_labels(Term& term, Drop drop) {
  Shape dims;
  Labels kept;
  for (size_t d = 0; d < term.labels.size(); ++d) {
    if (drop(term.labels[d]))
      dims.push_back(static_cast<int64_t>(d));
    else
      kept.push_back(term.labels[d]);
  }
  if (dims.empty()) return;
  // A dim of size one needs no sum, and no change of dtype.
  bool trivial = std::all_of(dims.begin(), dims.end(), [&](int64_t d) { return term.x.size(d) == 1; });
  if (trivial)
    for (size_t i = dims.size(); i-- > 0;) term.x = squeeze(term.x, dims[i]);
  else
    term.x = sum(term.x, dims, false, term.x.dtype());
  term.labels = std::move(kept);
}

// The dims in this order; a label that the term has not got becomes a dim of size one.
Tensor arranged(const Term& term, const Labels& order) {
  Shape dims;
  for (int label : order)
    if (term.has(label)) dims.push_back(term.dim(label));
  Tensor x = std::is_sorted(dims.begin(), dims.end()) ? term.x : permute(term.x, dims);
  for (size_t d = 0; d < order.size(); ++d)
    if (!term.has(order[d])) x = unsqueeze(x, static_cast<int64_t>(d));
  return x;
}

Labels joined(std::initializer_list<const Labels*> lists) {
  Labels all;
  for (const Labels* list : lists) all.insert(all.end(), list->begin(), list->end());
  return all;
}

int64_t product_of(const Term& term, const Labels& labels) {
  int64_t n = 1;
  for (int label : labels) n *= term.size(label);
  return n;
}

// Batched matrix product: [batch..., free of a, summed] @ [batch..., summed, free of b].
Term contract_by_matmul(const Term& a, const Term& b, const Labels& batch, const Labels& summed, const Labels& free_a,
                        const Labels& free_b) {
  Shape left, right, sizes;
  for (int label : batch) {
    left.push_back(a.size(label));
    right.push_back(b.size(label));
    sizes.push_back(a.size(label) == 1 ? b.size(label) : a.size(label));
  }
  left.push_back(product_of(a, free_a));
  left.push_back(product_of(a, summed));
  right.push_back(product_of(b, summed));
  right.push_back(product_of(b, free_b));
  for (int label : free_a) sizes.push_back(a.size(label));
  for (int label : free_b) sizes.push_back(b.size(label));
  Tensor x = reshape(arranged(a, joined({&batch, &free_a, &summed})), left);
  Tensor y = reshape(arranged(b, joined({&batch, &summed, &free_b})), right);
  return {reshape(matmul(x, y), sizes), joined({&batch, &free_a, &free_b})};
}

// Contracts two terms; `needed` says which labels someone asks for later.
template <class Needed>
Term contract(Term a, Term b, Needed needed) {
  // A sum over a label that has size one on one side is a sum of the other side alone.
  for (int label : Labels(a.labels)) {
    if (!b.has(label) || needed(label) || a.size(label) == b.size(label)) continue;
    sum_labels(a, [&](int l) { return l == label; });
    sum_labels(b, [&](int l) { return l == label; });
  }
  Labels batch, summed, free_a, free_b;
  for (int label : a.labels) (b.has(label) ? needed(label) ? batch : summed : free_a).push_back(label);
  for (int label : b.labels)
    if (!a.has(label)) free_b.push_back(label);
  // Without matrices to speak of, many products of single numbers are better done as one pointwise product.
  bool numbers = free_a.empty() && free_b.empty() && !batch.empty() && product_of(a, summed) < 64;
  if (!summed.empty() && !numbers) return contract_by_matmul(a, b, batch, summed, free_a, free_b);
  Labels order = joined({&batch, &free_a, &free_b, &summed});
  Term result{arranged(a, order) * arranged(b, order), order};
  sum_labels(result, [&](int label) { return std::find(summed.begin(), summed.end(), label) != summed.end(); });
  return result;
}

Tensor contract_all(std::string_view equation, const TensorList& operands) {
  std::string text(equation);
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  std::string_view all = text;
  size_t arrow = all.find("->");
  auto parts = split_operands(all.substr(0, arrow));
  check<ValueError>(!operands.empty(), "einsum", "\"{}\" needs at least one operand", equation);
  check<ValueError>(parts.size() == operands.size(), "einsum", "\"{}\" names {} operands, but {} are given", equation,
                    parts.size(), operands.size());
  std::vector<Term> terms;
  for (size_t i = 0; i < operands.size(); ++i) {
    check<ValueError>(operands[i].defined(), "einsum", "operand {} of \"{}\" is undefined", i, equation);
    // Some contractions end as products of elements: one dtype for all, whatever they turn out to be.
    Tensor operand =
        operands.size() > 1 ? amp::input_for(AutocastPolicy::low_precision, operands[i]) : Tensor(operands[i]);
    check<DTypeError>(i == 0 || operand.dtype() == terms[0].x.dtype(), "einsum",
                      "operands of \"{}\" must have one dtype, but operand {} is {} and the first {}; cast() it",
                      equation, i, operand, operands[0]);
    check<DeviceError>(
        i == 0 || operand.device() == terms[0].x.device(), "einsum",
        "operand {} of \"{}\", {}, and the first, {}, are on different devices; copy one with to(device)", i, equation,
        operand, operands[0]);
    terms.push_back(parse_operand(parts[i], operand, i, equation));
  }
  Labels output = arrow == std::string_view::npos ? implicit_output(terms)
                                                  : explicit_output(all.substr(arrow + 2), equation, terms);
  for (size_t i = 0; i < terms.size(); ++i) take_diagonals(terms[i], i, equation);
  check_sizes(terms, equation);

  auto in_output = [&](int label) { return std::find(output.begin(), output.end(), label) != output.end(); };
  // Labels that nobody but operand i asks for are summed before they make products larger.
  auto alone = [&](size_t i, size_t first) {
    return [&, i, first](int label) {
      if (in_output(label)) return false;
      for (size_t k = first; k < terms.size(); ++k)
        if (k != i && terms[k].has(label)) return false;
      return true;
    };
  };
  for (size_t i = 0; i < terms.size(); ++i) sum_labels(terms[i], alone(i, 0));
  for (size_t i = 1; i < terms.size(); ++i) {
    terms[i] = contract(std::move(terms[i - 1]), std::move(terms[i]), [&](int label) {
      bool later = std::any_of(terms.begin() + static_cast<std::ptrdiff_t>(i) + 1, terms.end(),
                               [&](const Term& t) { return t.has(label); });
      return later || in_output(label);
    });
    sum_labels(terms[i], alone(i, i));
  }
  return arranged(terms.back(), output);
}

}  // namespace

Tensor einsum(std::string_view equation, const TensorList& operands) {
  return named("einsum", [&] { return contract_all(equation, operands); });
}
Tensor& einsum_out(Tensor& out, std::string_view equation, const TensorList& operands) {
  return reduction::write_out(out, einsum(equation, operands), "einsum");
}

}  // namespace tutti
