#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "io/blob.h"
#include "tutti/data/readers.h"
#include "tutti/ops.h"

namespace tutti::data {

class Csv::Parser {
 public:
  Parser(Csv& csv, const CsvOptions& options) : csv_(csv), options_(options), text_(csv.blob_->bytes()) {
    if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);  // the mark that spreadsheets put in front
  }

  void parse() {
    bool header = options_.header;
    std::vector<std::string_view> row;
    while (at_ < text_.size()) {
      size_t line = line_;
      row.clear();
      bool blank = parse_row(row);
      if (blank && options_.skip_blank_lines) continue;
      if (header) {
        for (auto name : row) {
          check<FileError>(std::find(csv_.names_.begin(), csv_.names_.end(), name) == csv_.names_.end(), "csv",
                           "{}: line {} names two columns '{}': rename one, or read it with header = false",
                           csv_.blob_->name(), line, name);
          csv_.names_.emplace_back(name);
        }
        header = false;
        continue;
      }
      if (csv_.names_.empty())
        for (size_t i = 0; i < row.size(); ++i) csv_.names_.push_back(std::to_string(i));
      check<FileError>(row.size() == csv_.names_.size(), "csv", "{}: line {} has {} columns where there should be {}",
                       csv_.blob_->name(), line, row.size(), csv_.names_.size());
      csv_.cells_.insert(csv_.cells_.end(), row.begin(), row.end());
      csv_.lines_.push_back(line);
    }
  }

 private:
  // Reads to the end of the row and past it; true if there was nothing in it.
  bool parse_row(std::vector<std::string_view>& row) {
    size_t start = at_;
    while (true) {
      row.push_back(at_ < text_.size() && text_[at_] == options_.quote ? quoted(row.size()) : plain());
      if (at_ >= text_.size()) break;
      char c = text_[at_++];
      if (c == options_.delimiter) continue;
      if (c == '\r' && at_ < text_.size() && text_[at_] == '\n') ++at_;
      ++line_;
      break;
    }
    return row.size() == 1 && row[0].empty() && text_[start] != options_.quote;
  }

  std::string_view plain() {
    size_t start = at_;
    while (at_ < text_.size() && text_[at_] != options_.delimiter && text_[at_] != '\n' && text_[at_] != '\r') ++at_;
    return text_.substr(start, at_ - start);
  }

  // Between quotes; a copy is made only where a quote is doubled inside.
  std::string_view quoted(size_t column) {
    size_t line = line_, start = ++at_;
    bool doubled = false;
    for (;; ++at_) {
      check<FileError>(at_ < text_.size(), "csv", "{}: the quote of line {}, column {} is not closed",
                       csv_.blob_->name(), line, column + 1);
      if (text_[at_] == '\n') ++line_;
      if (text_[at_] != options_.quote) continue;
      if (at_ + 1 >= text_.size() || text_[at_ + 1] != options_.quote) break;
      doubled = true;
      ++at_;
    }
    std::string_view inside = text_.substr(start, at_ - start);
    ++at_;
    bool ends = at_ >= text_.size() || text_[at_] == options_.delimiter || text_[at_] == '\n' || text_[at_] == '\r';
    check<FileError>(ends, "csv", "{}: text after the closing quote of line {}, column {}", csv_.blob_->name(), line_,
                     column + 1);
    if (!doubled) return inside;
    std::string& copy = csv_.unquoted_.emplace_back();
    for (size_t i = 0; i < inside.size(); ++i) {
      copy += inside[i];
      if (inside[i] == options_.quote) ++i;
    }
    return copy;
  }

  Csv& csv_;
  const CsvOptions& options_;
  std::string_view text_;
  size_t at_ = 0, line_ = 1;
};

Csv::Csv(const std::string& path, const CsvOptions& options) : blob_(io::Blob::map(path, "csv")) {
  Parser(*this, options).parse();
}
Csv::Csv(std::string bytes, std::string name, const CsvOptions& options)
    : blob_(io::Blob::own(std::move(bytes), std::move(name))) {
  Parser(*this, options).parse();
}

size_t Csv::column(std::string_view name) const {
  auto found = std::find(names_.begin(), names_.end(), name);
  check<FileError>(found != names_.end(), "csv", "{} has no column '{}'; its columns are {}", blob_->name(), name,
                   fmt::join(names_, ", "));
  return static_cast<size_t>(found - names_.begin());
}

std::string_view Csv::cell(size_t row, size_t column) const {
  check<IndexError>(row < rows() && column < columns(), "csv",
                    "there is no cell {}, {}: it has {} rows and {} columns, counted from 0", row, column, rows(),
                    columns());
  return cells_[row * columns() + column];
}

namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Whether the digits of a number are all behind the point, as in 0.01e-400, once its exponent has moved it.
bool is_below_one(std::string_view number) {
  size_t e = std::min(number.find_first_of("eE"), number.size()), point = std::min(number.find('.'), e);
  size_t first = number.find_first_of("123456789");
  auto place = static_cast<int64_t>(point) - static_cast<int64_t>(first);  // > 0: before the point
  int64_t exponent = 0;
  if (e < number.size()) {
    std::string_view digits = number.substr(e + 1);
    bool negative = digits.starts_with('-');
    if (negative || digits.starts_with('+')) digits.remove_prefix(1);
    auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    constexpr int64_t kFar = int64_t{1} << 50;  // more digits than a file has
    if (error == std::errc::result_out_of_range || exponent > kFar) exponent = kFar;
    if (negative) exponent = -exponent;
  }
  return place + exponent <= 0;
}

// Whether the dtype has a number like this one. A double is rounded to it; what becomes infinite does not fit.
template <class T>
bool round_to(double value, T& out) {
  if constexpr (std::same_as<T, bool>) {
    out = value != 0;
    return value == 0 || value == 1;
  } else if constexpr (std::is_integral_v<T>) {
    constexpr double low = static_cast<double>(std::numeric_limits<T>::min());
    constexpr double end = 2.0 * static_cast<double>(std::numeric_limits<T>::max() / 2 + 1);
    if (!(value >= low && value < end && value == std::trunc(value))) return false;
    out = static_cast<T>(value);
    return true;
  } else {
    if constexpr (std::same_as<T, double>)
      out = value;
    else if (std::abs(value) > std::numeric_limits<float>::max() && std::isfinite(value))
      return false;
    else
      out = static_cast<T>(static_cast<float>(value));
    return std::isfinite(value) == std::isfinite(static_cast<double>(out));
  }
}

template <class T>
bool parse_number(std::string_view text, T& out) {
  text = trimmed(text);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const char *begin = text.data(), *end = begin + text.size();
  auto whole = [&](auto& value) {
    auto [stop, error] = std::from_chars(begin, end, value);
    return error == std::errc() && stop == end && !text.empty();
  };
  if constexpr (std::same_as<T, bool>) {
    out = text == "1" || text == "true" || text == "True" || text == "TRUE";
    return out || text == "0" || text == "false" || text == "False" || text == "FALSE";
  } else if constexpr (std::is_integral_v<T>) {
    return whole(out);
  } else {
    double value = 0;
    auto [stop, error] = std::from_chars(begin, end, value);
    if (stop != end || text.empty()) return false;
    if (error == std::errc::result_out_of_range && is_below_one(text))
      value = text.starts_with('-') ? -0.0 : 0.0;
    else if (error != std::errc())
      return false;
    return round_to(value, out);
  }
}

template <class T>
inline constexpr bool is_complex_type = std::same_as<T, std::complex<float>> || std::same_as<T, std::complex<double>>;

}  // namespace

void Csv::fill(Tensor& out, size_t column, std::optional<double> missing) const {
  with_type(out.dtype(), [&]<class T>() {
    if constexpr (is_complex_type<T>) {
      fail<DTypeError>("csv", "cells are not read as {}", out.dtype());
    } else {
      T instead{};
      check<ValueError>(!missing || round_to(*missing, instead), "csv", "{} in the place of empty cells is no {}",
                        missing.value_or(0), out.dtype());
      auto* to = static_cast<T*>(out.raw_data());
      int64_t step = out.stride(0);
      for (size_t row = 0; row < rows(); ++row, to += step) {
        std::string_view text = cell(row, column);
        bool empty = trimmed(text).empty();
        check<FileError>(missing || !empty, "csv",
                         "{}: line {}, column {} ('{}') is empty: say what stands for empty cells (missing)",
                         blob_->name(), lines_[row], column + 1, names_[column]);
        if (empty)
          *to = instead;
        else
          check<FileError>(parse_number<T>(text, *to), "csv",
                           "{}: line {}, column {} ('{}'): '{}' is no {}, or too large for it", blob_->name(),
                           lines_[row], column + 1, names_[column], text.substr(0, 50), out.dtype());
      }
    }
  });
}

Tensor Csv::numbers(std::string_view name, DType dtype, std::optional<double> missing) const {
  size_t at = column(name);
  Tensor out = empty({static_cast<int64_t>(rows())}, {.dtype = dtype, .device = Device()});
  fill(out, at, missing);
  return out;
}

Tensor Csv::matrix(const std::vector<std::string>& names, DType dtype) const {
  const auto& wanted = names.empty() ? names_ : names;
  Tensor out =
      empty({static_cast<int64_t>(rows()), static_cast<int64_t>(wanted.size())}, {.dtype = dtype, .device = Device()});
  for (size_t i = 0; i < wanted.size(); ++i) {
    Tensor part = out.select(1, static_cast<int64_t>(i));
    fill(part, names.empty() ? i : column(wanted[i]), std::nullopt);
  }
  return out;
}

std::vector<std::string> Csv::strings(std::string_view name) const {
  size_t at = column(name);
  std::vector<std::string> list;
  list.reserve(rows());
  for (size_t row = 0; row < rows(); ++row) list.emplace_back(cell(row, at));
  return list;
}

Csv::Categories Csv::categories(std::string_view name) const {
  std::vector<std::string> texts = strings(name), names = texts;
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::vector<int64_t> codes;
  for (auto& text : texts) codes.push_back(std::lower_bound(names.begin(), names.end(), text) - names.begin());
  return {tensor(codes), std::move(names)};
}

}  // namespace tutti::data
