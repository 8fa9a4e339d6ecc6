// Readers of data files: IDX (MNIST's), CSV, text. Wrong files are a FileError that says where.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/tensor.h"

namespace tutti::io {
class Blob;
}

namespace tutti::data {

/// The array of an IDX file, plain or compressed by gzip, as MNIST is distributed: u8, i8, i16, i32, f32 or f64.
Tensor read_idx(const std::string& path);
/// From bytes; `name` stands for the path in errors.
Tensor parse_idx(std::string_view bytes, const std::string& name);
/// For tests and for making such files.
void save_idx(const std::string& path, const Tensor& tensor);

struct CsvOptions {
  bool header = true;  // the first line names the columns; else they are called "0", "1", ...
  char delimiter = ',';
  char quote = '"';  // inside quotes, delimiters and new lines are text and a doubled quote is one
  bool skip_blank_lines = true;
};

/// A table of text with columns of different names, whose columns are made into tensors when asked for. The file stays
/// mapped while it lives.
class Csv {
 public:
  explicit Csv(const std::string& path, const CsvOptions& options = {});
  /// From bytes; `name` stands for the path in errors.
  Csv(std::string bytes, std::string name, const CsvOptions& options = {});

  const std::vector<std::string>& names() const { return names_; }
  size_t rows() const { return lines_.size(); }
  size_t columns() const { return names_.size(); }
  /// The number of the column of this name.
  size_t column(std::string_view name) const;
  std::string_view cell(size_t row, size_t column) const;

  /// A column as numbers. FileError naming line and column where a cell is none (boolean: 0, 1, true, false), or is
  /// larger than the dtype can say; what is too small for it is 0. With `missing`, empty cells become that number.
  Tensor numbers(std::string_view name, DType dtype = DType::f32, std::optional<double> missing = {}) const;
  /// Several columns as [rows, columns]; all of them where no name is given.
  Tensor matrix(const std::vector<std::string>& names = {}, DType dtype = DType::f32) const;
  std::vector<std::string> strings(std::string_view name) const;
  struct Categories {
    Tensor codes;                    // i64, positions in names
    std::vector<std::string> names;  // the different texts, sorted
  };
  Categories categories(std::string_view name) const;

 private:
  class Parser;
  void fill(Tensor& out, size_t column, std::optional<double> missing) const;

  std::shared_ptr<io::Blob> blob_;
  std::vector<std::string> names_;
  std::vector<std::string_view> cells_;  // row by row; of the file, or of unquoted_
  std::deque<std::string> unquoted_;
  std::vector<size_t> lines_;  // where each row begins
};

/// The text of files, one after the other.
std::string read_text(const std::vector<std::string>& paths);

/// The characters that a text is made of, numbered. Of bytes, or of Unicode characters (the text must be UTF-8).
class Vocabulary {
 public:
  /// All 256 bytes: can encode anything.
  static Vocabulary bytes();
  /// The different characters of a text, in their order by code.
  static Vocabulary characters(std::string_view text);

  size_t size() const { return codes_.empty() ? 256 : codes_.size(); }
  /// One i64 per character. ValueError for a character that is not in the vocabulary.
  Tensor encode(std::string_view text) const;
  std::string decode(const Tensor& tokens) const;

 private:
  std::vector<uint32_t> codes_;  // sorted; empty: bytes
};

/// Pieces of a long sequence of tokens: sample i is (tokens[i·stride ... + length), the same moved by one), which is
/// what a model that predicts the next token learns from.
class SequenceDataset {
 public:
  /// stride 0: length, so that pieces do not overlap.
  SequenceDataset(Tensor tokens, int64_t length, int64_t stride = 0);
  size_t size() const { return size_; }
  std::pair<Tensor, Tensor> get(size_t index) const;

 private:
  Tensor tokens_;
  int64_t length_, stride_;
  size_t size_;
};

struct Digits {
  Tensor images;  // f32 [count, 1, 28, 28], 0 (paper) to 1 (ink)
  Tensor labels;  // i64 [count], 0 to 9
};
/// Handwriting-like digits, drawn by strokes that are bent, turned, shifted and thickened at random, with some noise:
/// enough for a convolutional network to learn on where nothing can be downloaded. Image i depends on the seed and i.
Digits digits(int64_t count, uint64_t seed = 0);

}  // namespace tutti::data
