#include <algorithm>
#include <charconv>
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
        for (auto name : row) csv_.names_.emplace_back(name);
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
  check<IndexError>(row < rows() && column < columns(), "csv", "cell {}, {} of {} by {}", row, column, rows(),
                    columns());
  return cells_[row * columns() + column];
}

namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
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
    if (!whole(value)) return false;
    out = static_cast<T>(static_cast<std::conditional_t<std::same_as<T, double>, double, float>>(value));
    return true;
  }
}

template <class T>
inline constexpr bool is_complex_type = std::same_as<T, std::complex<float>> || std::same_as<T, std::complex<double>>;

}  // namespace

void Csv::fill(Tensor& out, size_t column, const double* missing) const {
  with_type(out.dtype(), [&]<class T>() {
    if constexpr (is_complex_type<T>) {
      fail<DTypeError>("csv", "cells are not read as {}", out.dtype());
    } else {
      auto* to = static_cast<T*>(out.raw_data());
      int64_t step = out.stride(0);
      for (size_t row = 0; row < rows(); ++row, to += step) {
        std::string_view text = cell(row, column);
        if (missing && trimmed(text).empty())
          *to = static_cast<T>(*missing);
        else
          check<FileError>(parse_number<T>(text, *to), "csv", "{}: line {}, column {} ('{}'): '{}' is no {}",
                           blob_->name(), lines_[row], column + 1, names_[column], text.substr(0, 50), out.dtype());
      }
    }
  });
}

Tensor Csv::numbers(std::string_view name, DType dtype, const double* missing) const {
  size_t at = column(name);
  check<ValueError>(!missing || is_floating(dtype) || (*missing > -1e18 && *missing < 1e18), "csv",
                    "{} in the place of empty cells is no {}", missing ? *missing : 0.0, dtype);
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
    fill(part, names.empty() ? i : column(wanted[i]), nullptr);
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
