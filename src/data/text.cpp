#include <algorithm>

#include "base/check.h"
#include "io/json.h"
#include "tutti/data/readers.h"
#include "tutti/io/file.h"
#include "tutti/ops.h"

namespace tutti::data {
namespace {

// The code of the character at `at`, which is moved past it. The text is known to be UTF-8.
uint32_t next_code(std::string_view text, size_t& at) {
  auto lead = static_cast<unsigned char>(text[at++]);
  int more = lead < 0x80 ? 0 : lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
  uint32_t code = more == 0 ? lead : lead & (0x3fu >> more);
  for (; more > 0; --more) code = code << 6 | (static_cast<unsigned char>(text[at++]) & 0x3fu);
  return code;
}

void check_utf8(std::string_view text) {
  check<ValueError>(io::is_utf8(text), "vocabulary", "the text is not UTF-8; Vocabulary::bytes() takes any");
}

}  // namespace

std::string read_text(const std::vector<std::string>& paths) {
  std::string text;
  for (auto& path : paths) text += io::read_file(path);
  return text;
}

Vocabulary Vocabulary::bytes() { return {}; }

Vocabulary Vocabulary::characters(std::string_view text) {
  check_utf8(text);
  check<ValueError>(!text.empty(), "vocabulary", "the text is empty");
  std::vector<bool> seen(0x110000);
  Vocabulary vocabulary;
  for (size_t at = 0; at < text.size();) {
    uint32_t code = next_code(text, at);
    if (!seen[code]) vocabulary.codes_.push_back(code);
    seen[code] = true;
  }
  std::sort(vocabulary.codes_.begin(), vocabulary.codes_.end());
  return vocabulary;
}

Tensor Vocabulary::encode(std::string_view text) const {
  std::vector<int64_t> tokens;
  tokens.reserve(text.size());
  if (codes_.empty()) {
    for (char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tensor(tokens);
  }
  check_utf8(text);
  for (size_t at = 0; at < text.size();) {
    size_t start = at;
    uint32_t code = next_code(text, at);
    auto found = std::lower_bound(codes_.begin(), codes_.end(), code);
    check<ValueError>(found != codes_.end() && *found == code, "vocabulary", "'{}' (at byte {}) is not in it",
                      text.substr(start, at - start), start);
    tokens.push_back(found - codes_.begin());
  }
  return tensor(tokens);
}

std::string Vocabulary::decode(const Tensor& tokens) const {
  check<DTypeError>(!tokens.defined() || !(tokens.is_floating() || tokens.is_complex()), "vocabulary",
                    "tokens are whole numbers, not {}", tokens);
  std::string text;
  for (int64_t token : tokens.to_vector<int64_t>()) {
    check<IndexError>(token >= 0 && static_cast<size_t>(token) < size(), "vocabulary",
                      "there is no token {}: there are {}, counted from 0", token, size());
    if (codes_.empty())
      text += static_cast<char>(token);
    else
      io::append_utf8(text, codes_[static_cast<size_t>(token)]);
  }
  return text;
}

SequenceDataset::SequenceDataset(Tensor tokens, int64_t length, int64_t stride)
    : tokens_(std::move(tokens)), length_(length), stride_(stride == 0 ? length : stride) {
  check<ShapeError>(tokens_.dim() == 1, "SequenceDataset", "tokens are a vector, not {}", tokens_);
  check<DTypeError>(!tokens_.is_floating() && !tokens_.is_complex(), "SequenceDataset",
                    "tokens are whole numbers, not {}", tokens_);
  check<ValueError>(length_ > 0 && stride_ > 0, "SequenceDataset", "a length of {} and a stride of {}", length, stride);
  int64_t room = tokens_.numel() - length_ - 1;
  size_ = room < 0 ? 0 : static_cast<size_t>(room / stride_ + 1);
}

std::pair<Tensor, Tensor> SequenceDataset::get(size_t index) const {
  check<IndexError>(index < size_, "dataset", "there is no sample {}: there are {}, counted from 0", index, size_);
  int64_t start = static_cast<int64_t>(index) * stride_;
  return {tokens_.narrow(0, start, length_), tokens_.narrow(0, start + 1, length_)};
}

}  // namespace tutti::data
