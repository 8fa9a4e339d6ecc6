// An event file is a list of records: u64 length, its masked checksum, that many bytes, theirs. The bytes are an Event
// in protocol-buffer encoding, written here field by field.
#include "tutti/io/events.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <vector>

#include "io/blob.h"
#include "io/crc32c.h"
#include "io/descriptor.h"
#include "io/png.h"
#include "tutti/ops.h"

namespace tutti::io {
namespace {

constexpr const char* kEventsOperation = "events";

// ---- Protocol buffers: a field is its number and wire type, then the value.
class Message {
 public:
  Message& varint(int field, uint64_t value) {
    key(field, 0);
    raw_varint(value);
    return *this;
  }
  Message& fixed(int field, double value) {
    key(field, 1);
    put(bytes_, value);
    return *this;
  }
  Message& fixed(int field, float value) {
    key(field, 5);
    put(bytes_, value);
    return *this;
  }
  Message& text(int field, std::string_view value) {
    key(field, 2);
    raw_varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return text(field, value.bytes_); }
  Message& packed(int field, const std::vector<double>& values) {
    return text(field, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)});
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, int type) { raw_varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type)); }
  void raw_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// Event { 1 wall_time, 2 step, 3 file_version, 5 Summary { 1 repeated Value } }
Message event(double time, const Message& value, int64_t step) {
  return Message().fixed(1, time).varint(2, static_cast<uint64_t>(step)).message(5, Message().message(1, value));
}

// HistogramProto { 1 min, 2 max, 3 num, 4 sum, 5 sum_squares, 6 bucket_limit, 7 bucket }
Message histogram(const std::vector<double>& values, int bins) {
  double low = 0, high = 0, sum = 0, squares = 0, count = 0;
  for (double v : values) {
    if (!std::isfinite(v)) continue;
    low = count == 0 ? v : std::min(low, v);
    high = count == 0 ? v : std::max(high, v);
    sum += v;
    squares += v * v;
    ++count;
  }
  std::vector<double> limits(static_cast<size_t>(bins)), buckets(static_cast<size_t>(bins));
  for (int i = 0; i < bins; ++i)
    limits[static_cast<size_t>(i)] = i + 1 == bins ? high : low + (high - low) * ((i + 1.0) / bins);
  for (double v : values) {
    if (!std::isfinite(v)) continue;
    double place = high > low ? (v / 2 - low / 2) / (high / 2 - low / 2) * bins : 0;  // halves: no overflow
    buckets[static_cast<size_t>(std::clamp(place, 0.0, bins - 1.0))] += 1;
  }
  return Message()
      .fixed(1, low)
      .fixed(2, high)
      .fixed(3, count)
      .fixed(4, sum)
      .fixed(5, squares)
      .packed(6, limits)
      .packed(7, buckets);
}

}  // namespace

struct EventWriter::Impl {
  Impl(const std::string& directory, EventOptions given) : options(std::move(given)) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    check<FileError>(!error, kEventsOperation, "{} cannot be made: {}", directory, error.message());
    char host[256] = "localhost";
    ::gethostname(host, sizeof host - 1);
    static std::atomic<int> counter{0};
    path = fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", directory, static_cast<int64_t>(now()), host,
                       ::getpid(), counter.fetch_add(1));
    file = Descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
    check<FileError>(file.get() >= 0, kEventsOperation, "{} cannot be made: {}", path, std::strerror(errno));
    add(Message().fixed(1, time()).text(3, "brain.Event:2"));
    flush();
  }
  double time() const { return options.clock ? options.clock() : now(); }
  void add(const Message& value, int64_t step) { add(event(time(), value, step)); }
  void add(const Message& event) {
    std::lock_guard lock(mutex);
    const std::string& data = event.bytes();
    std::string length;
    put<uint64_t>(length, data.size());
    buffer += length;
    put(buffer, masked_crc32c(length));
    buffer += data;
    put(buffer, masked_crc32c(data));
    if (buffer.size() > 1 << 16) send();
  }
  void flush() {
    std::lock_guard lock(mutex);
    send();
  }
  void send() {
    for (size_t at = 0; at < buffer.size();) {
      ssize_t written = ::write(file.get(), buffer.data() + at, buffer.size() - at);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) buffer.erase(0, at);
      check<FileError>(written > 0, kEventsOperation, "{} cannot be written: {}", path, std::strerror(errno));
      at += static_cast<size_t>(written);
    }
    buffer.clear();
  }

  EventOptions options;
  std::string path, buffer;
  Descriptor file;
  std::mutex mutex;
};

EventWriter::EventWriter(const std::string& directory, EventOptions options)
    : impl_(std::make_unique<Impl>(directory, std::move(options))) {}
EventWriter::EventWriter(EventWriter&&) noexcept = default;
EventWriter& EventWriter::operator=(EventWriter&&) noexcept = default;
EventWriter::~EventWriter() {
  try {
    if (impl_) impl_->flush();
  } catch (const FileError&) {  // NOLINT: nobody is left to hear of it; flush() says it in time
  }
}

void EventWriter::flush() { impl_->flush(); }
const std::string& EventWriter::path() const { return impl_->path; }

// Value { 1 tag, 2 simple_value, 4 image, 5 histo, 8 tensor, 9 metadata }
void EventWriter::add_scalar(std::string_view tag, double value, int64_t step) {
  impl_->add(Message().text(1, tag).fixed(2, static_cast<float>(value)), step);
}

void EventWriter::add_text(std::string_view tag, std::string_view text, int64_t step) {
  // TensorProto { 1 dtype (7: string), 2 shape { 2 dim { 1 size } }, 8 string_val }; SummaryMetadata { 1 { 1 plugin } }
  Message shape = Message().message(2, Message().varint(1, 1));
  Message tensor = Message().varint(1, 7).message(2, shape).text(8, text);
  Message metadata = Message().message(1, Message().text(1, "text"));
  impl_->add(Message().text(1, tag).message(8, tensor).message(9, metadata), step);
}

void EventWriter::add_histogram(std::string_view tag, const Tensor& values, int64_t step, int bins) {
  check<ValueError>(bins > 0 && bins <= 1 << 20, kEventsOperation, "{} bins", bins);
  Tensor flat = for_file(values, kEventsOperation, tag);
  check<DTypeError>(!flat.is_complex(), kEventsOperation, "'{}' is {}: complex numbers have no order", tag, values);
  impl_->add(Message().text(1, tag).message(5, histogram(flat.to_vector<double>(), bins)), step);
}

void EventWriter::add_image(std::string_view tag, const Tensor& image, int64_t step) {
  int64_t channels = image.dim() == 3 ? image.size(0) : 1;
  check<ShapeError>((image.dim() == 2 || image.dim() == 3) && (channels == 1 || channels == 3) && image.numel() > 0,
                    kEventsOperation, "an image is [height, width], [1, height, width] or [3, height, width], not {}",
                    image);
  check<DTypeError>(image.dtype() == u8 || image.is_floating(), kEventsOperation, "an image is u8 or floating, not {}",
                    image);
  Tensor dense = for_file(image, kEventsOperation, tag);
  if (dense.dtype() != u8) dense = round(clamp(dense.to(f32), 0.f, 1.f) * 255.f).to(u8);
  int64_t height = image.size(-2), width = image.size(-1);
  Tensor pixels = dense.reshape({channels, height, width}).permute({1, 2, 0}).contiguous();
  std::string png = encode_png({static_cast<const char*>(pixels.raw_data()), static_cast<size_t>(pixels.numel())},
                               height, width, static_cast<int>(channels));
  // Image { 1 height, 2 width, 3 colorspace (1 grey, 3 RGB), 4 encoded }
  auto u = [](int64_t v) { return static_cast<uint64_t>(v); };
  Message message = Message().varint(1, u(height)).varint(2, u(width)).varint(3, u(channels)).text(4, png);
  impl_->add(Message().text(1, tag).message(4, message), step);
}

}  // namespace tutti::io
