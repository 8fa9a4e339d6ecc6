#include "base/check.h"
#include "tests/support/fuzz.h"
#include "tutti/data.h"
#include "tutti/ops.h"

namespace tutti::fuzz {

std::vector<std::string> seeds() {
  return {"plain text",
          "ü é ß €",
          "\xf0\x9f\x98\x80 and \xf4\x8f\xbf\xbf",
          std::string("\0x", 2),
          "\xed\x9f\xbf\xee\x80\x80",
          "long enough to be cut into pieces, \xc2\x80 to \xdf\xbf and \xe0\xa0\x80 to \xef\xbf\xbf"};
}

void target(const std::string& bytes) {
  auto all = data::Vocabulary::bytes();
  TUTTI_ASSERT(all.decode(all.encode(bytes)) == bytes);
  // Of text that is UTF-8 every character is in the vocabulary, and comes back.
  auto letters = data::Vocabulary::characters(bytes);
  Tensor tokens = letters.encode(bytes);
  TUTTI_ASSERT(letters.decode(tokens) == bytes);
  TUTTI_ASSERT(letters.size() <= bytes.size() && tokens.numel() <= static_cast<int64_t>(bytes.size()));
  data::SequenceDataset pieces(tokens, 3, 2);
  for (size_t i = 0; i < pieces.size(); ++i) letters.decode(pieces.get(i).second);
  // What others wrote may have characters that are not in it, or tokens that do not exist.
  for (const std::string& other : {std::string("abc ü"), bytes.substr(bytes.size() / 2), bytes + "\xff"}) {
    try {
      TUTTI_ASSERT(letters.decode(letters.encode(other)) == other);
    } catch (const ValueError&) {
    }
  }
  try {
    letters.decode(tensor(std::vector<int64_t>{static_cast<int64_t>(bytes[0]), -1}));
    TUTTI_ASSERT(false);
  } catch (const IndexError&) {
  }
}

}  // namespace tutti::fuzz
