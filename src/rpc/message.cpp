#include "rpc/message.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/check.h"
#include "io/blob.h"
#include "tutti/autograd.h"
#include "tutti/ops.h"
#include "tutti/rpc/value.h"

namespace tutti::rpc {
namespace detail {
namespace {

constexpr size_t kMaxText = 4096;   // of a type's name, and of where a reference was made
constexpr size_t kOwnCopy = 32768;  // tensors of up to so many bytes do not keep the whole message alive
constexpr int kMaxDepth = 200;

std::atomic<const MessageHooks*> the_hooks{nullptr};

enum TensorKind : uint8_t { kUndefined, kDense, kChannelsLast, kMeta, kNumber, kSparse, kCoalesced, kTensorKinds };

size_t tensor_bytes(const Tensor& t) {
  if (!t.defined() || t.device().is_meta()) return 0;
  if (t.is_sparse()) return tensor_bytes(t.indices()) + tensor_bytes(t.values());
  return static_cast<size_t>(t.numel()) * t.element_size();
}

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Numbers give way to the dtypes of the tensors that they meet, on the other side too.
Tensor as_number(const Tensor& t) {
  switch (category(t.dtype())) {
    case Category::boolean:
      return Tensor(t.item<bool>());
    case Category::integer:
      return Tensor(t.item<int64_t>());
    case Category::floating:
      return Tensor(t.item<double>());
    default:
      return Tensor(t.item<std::complex<double>>());
  }
}

// ---- Taking apart

/// Writes the table, and gathers the memory.
class Packer {
 public:
  explicit Packer(Packed& packed) : packed_(packed) {}
  std::string table;
  void tensor(const Tensor& given) {
    if (!given.defined()) return io::put<uint8_t>(table, kUndefined);
    Tensor t = given.detach();
    if (t.is_sparse()) {
      head(t.is_coalesced() ? kCoalesced : kSparse, t);
      // Those of an uncoalesced one are parts of it that cannot be had by themselves otherwise.
      tensor(t.indices());
      tensor(t.values());
      return;
    }
    if (t.device().is_meta()) return head(kMeta, t);
    bool last = t.dim() == 4 && !t.is_contiguous() && t.is_contiguous(MemoryFormat::channels_last);
    head(t.is_number() ? kNumber : last ? kChannelsLast : kDense, t);
    if (!t.device().is_cpu()) t = t.to(Device());
    data(last ? t : t.contiguous());
  }
  // One tensor stays where it is; of several, one copy is made that can be sent in one go.
  void gather() {
    if (parts_.empty()) return;
    packed_.memory = parts_[0].tensor;
    if (parts_.size() > 1) {
      packed_.memory = empty({packed_.header.data_bytes}, {.dtype = DType::u8, .device = Device()});
      auto* to = static_cast<char*>(packed_.memory.raw_data());
      uint64_t end = 0;
      for (const Part& p : parts_) {
        std::memset(to + end, 0, p.at - end);
        std::memcpy(to + p.at, p.tensor.raw_data(), p.bytes);
        end = p.at + p.bytes;
      }
    }
    packed_.data = packed_.memory.raw_data();
  }
  void reference(const RefRecord& r) {
    io::put(table, r.id.maker);
    io::put(table, r.id.owner);
    io::put(table, r.id.number);
    io::put(table, r.fork);
    text(r.type);
    text(r.made_at);
  }

 private:
  void head(TensorKind kind, const Tensor& t) {
    io::put<uint8_t>(table, kind);
    io::put(table, static_cast<uint8_t>(t.dtype()));
    io::put(table, static_cast<uint8_t>(t.device().kind));
    io::put(table, t.device().index);
    check<ValueError>(t.sizes().size() <= io::kMaxDims, kRpcOperation, "{} has too many dims for a message", t);
    io::put(table, static_cast<uint8_t>(t.sizes().size()));
    for (int64_t size : t.sizes()) io::put(table, size);
  }
  void text(std::string_view text) {
    text = text.substr(0, kMaxText);
    io::put(table, static_cast<uint32_t>(text.size()));
    table += text;
  }
  void data(Tensor t) {
    size_t bytes = tensor_bytes(t);
    if (bytes == 0) return;
    uint64_t at = aligned(packed_.header.data_bytes);
    parts_.push_back({std::move(t), at, bytes});
    packed_.header.data_bytes = at + bytes;
  }
  struct Part {
    Tensor tensor;
    uint64_t at, bytes;
  };
  std::vector<Part> parts_;
  Packed& packed_;
};

}  // namespace

void set_hooks(const MessageHooks* hooks) { the_hooks.store(hooks); }
const MessageHooks* hooks() { return the_hooks.load(std::memory_order_acquire); }

Tensor copy_of(const Tensor& given) {
  if (!given.defined()) return {};
  NoGrad guard;
  if (given.is_number()) return as_number(given);
  return given.device().is_meta() ? given.detach() : given.detach().clone();
}

size_t Message::bytes() const {
  size_t sum = sizeof(Message) + body.size() + extension.size();
  for (const Tensor& t : tensors) sum += tensor_bytes(t);
  return sum + references.size() * sizeof(RefRecord);
}

Packed pack(Message&& m) {
  Packed packed;
  WireHeader& h = packed.header;
  h.kind = static_cast<uint8_t>(m.kind);
  h.from = static_cast<uint32_t>(m.from);
  h.number = m.number;
  h.function = m.function;
  Packer packer(packed);
  if (!m.tensors.empty() || !m.references.empty()) {
    NoGrad guard;
    io::put(packer.table, static_cast<uint32_t>(m.tensors.size()));
    for (const Tensor& t : m.tensors) packer.tensor(t);
    io::put(packer.table, static_cast<uint32_t>(m.references.size()));
    for (const RefRecord& r : m.references) packer.reference(r);
    packer.gather();
  }
  check<ValueError>(packer.table.size() <= kMaxTable && m.extension.size() <= kMaxTable, kRpcOperation,
                    "a message of {} tensors and {} references is too large; send it in parts", m.tensors.size(),
                    m.references.size());
  h.table_bytes = static_cast<uint32_t>(packer.table.size());
  h.extension_bytes = static_cast<uint32_t>(m.extension.size());
  h.body_bytes = m.body.size();
  packed.front = std::move(packer.table);
  packed.front += m.extension;
  packed.front += m.body;
  if (h.data_bytes > 0) packed.front.resize(data_at(h));
  return packed;
}

// ---- Putting together

uint64_t bytes_after(const WireHeader& h) {
  return h.data_bytes > 0 ? data_at(h) + h.data_bytes : uint64_t{h.table_bytes} + h.extension_bytes + h.body_bytes;
}

std::string defect(const WireHeader& h, uint64_t bytes) {
  if (h.magic != WireHeader::kMagic) return "it is not a message of Tutti's";
  if (h.version != WireHeader::kVersion)
    return fmt::format("it is of version {}, and this program speaks version {}", h.version, WireHeader::kVersion);
  if (h.kind < 1 || h.kind > kKinds) return fmt::format("it is of kind {}, which there is not", h.kind);
  if (h.table_bytes > kMaxTable || h.extension_bytes > kMaxTable || h.body_bytes > kMaxMessage ||
      h.data_bytes > kMaxMessage)
    return "it says that it is larger than messages may be";
  uint64_t wanted = bytes_after(h);
  if (wanted != bytes) return fmt::format("it says that it has {} bytes and has {}", wanted, bytes);
  return {};
}

namespace {

class Unpacker {
 public:
  Unpacker(std::string_view table, std::string_view data, const std::shared_ptr<void>& owner)
      : table_(table), data_(data), owner_(owner) {}

  void into(Message& m) {
    if (table_.empty()) return;
    for (uint32_t left = count(1); left > 0; --left) m.tensors.push_back(tensor(true));
    for (uint32_t left = count(32); left > 0; --left) m.references.push_back(reference());
    check<ValueError>(table_.empty(), kRpcOperation, "a message has {} bytes after its table", table_.size());
    check<ValueError>(data_.empty(), kRpcOperation, "a message has {} bytes after its tensors", data_.size());
  }

 private:
  template <class T>
  T number() {
    check<ValueError>(table_.size() >= sizeof(T), kRpcOperation, "a message's table ends too early");
    T value;
    std::memcpy(&value, table_.data(), sizeof value);
    table_.remove_prefix(sizeof value);
    return value;
  }
  uint32_t count(size_t each) {
    auto n = number<uint32_t>();
    check<ValueError>(n <= table_.size() / each, kRpcOperation, "a message says that {} follow in {} bytes", n,
                      table_.size());
    return n;
  }
  std::string text() {
    auto size = number<uint32_t>();
    check<ValueError>(size <= kMaxText && size <= table_.size(), kRpcOperation, "a text of {} bytes in a message",
                      size);
    std::string result(table_.substr(0, size));
    table_.remove_prefix(size);
    return result;
  }

  Tensor tensor(bool sparse_allowed) {
    auto kind = number<uint8_t>();
    check<ValueError>(kind < kTensorKinds, kRpcOperation, "a message has a tensor of kind {}, which there is not",
                      kind);
    if (kind == kUndefined) return {};
    auto dtype = number<uint8_t>(), device_kind = number<uint8_t>();
    auto index = number<int16_t>();
    check<ValueError>(dtype < kDTypes && device_kind < kDeviceKinds && index >= 0, kRpcOperation,
                      "a message has a tensor of dtype {} on device {}:{}, which there are not", dtype, device_kind,
                      index);
    Shape sizes;
    auto dims = number<uint8_t>();
    for (int d = 0; d < dims; ++d) sizes.push_back(number<int64_t>());
    uint64_t bytes = 0;
    check<ValueError>(io::bytes_of(sizes, size_of(static_cast<DType>(dtype)), bytes), kRpcOperation,
                      "a message has a tensor of shape {}, which cannot be", sizes);
    Options options{.dtype = static_cast<DType>(dtype), .device = Device(static_cast<DeviceKind>(device_kind), index)};
    check<ValueError>((kind == kMeta) == options.device->is_meta(), kRpcOperation,
                      "a message has a tensor on {} with values of kind {}", *options.device, kind);
    if (kind == kMeta) return empty(sizes, options);
    if (kind == kSparse || kind == kCoalesced) {
      check<ValueError>(sparse_allowed, kRpcOperation, "a message has a sparse tensor inside of a sparse tensor");
      Tensor indices = tensor(false), values = tensor(false);
      check<ValueError>(indices.defined() && values.defined() && values.dtype() == *options.dtype, kRpcOperation,
                        "a message has a sparse tensor without indices or values");
      Tensor result = sparse_coo(indices, values, sizes);
      return kind == kCoalesced ? result.coalesce() : result;
    }
    return dense(static_cast<TensorKind>(kind), sizes, options, bytes);
  }

  Tensor dense(TensorKind kind, const Shape& sizes, const Options& options, uint64_t bytes) {
    uint64_t taken = std::min<uint64_t>(aligned(bytes), data_.size());
    check<ValueError>(bytes <= data_.size(), kRpcOperation, "a message has {} bytes for a tensor of shape {}",
                      data_.size(), sizes);
    std::string_view memory = data_.substr(0, bytes);
    data_.remove_prefix(taken);
    check<ValueError>(kind != kChannelsLast || sizes.size() == 4, kRpcOperation,
                      "a message has a channels-last tensor of shape {}", sizes);
    Shape shape = sizes;
    if (kind == kChannelsLast) shape = {sizes[0], sizes[2], sizes[3], sizes[1]};
    Tensor t;
    if (!owner_ || bytes <= kOwnCopy) {
      t = empty(shape, {.dtype = options.dtype, .device = Device()});
      if (bytes > 0) std::memcpy(t.raw_data(), memory.data(), bytes);
    } else {
      t = from_blob(memory.data(), shape, {.dtype = options.dtype, .device = Device()}, [owner = owner_] {});
    }
    if (kind == kChannelsLast) t = t.permute({0, 3, 1, 2});
    if (*options.device != Device()) t = t.to(*options.device);
    if (kind == kNumber && sizes.empty()) t = as_number(t);
    return t;
  }
  RefRecord reference() {
    RefRecord r;
    r.id.maker = number<int32_t>();
    r.id.owner = number<int32_t>();
    r.id.number = number<uint64_t>();
    r.fork = number<uint64_t>();
    r.type = text();
    r.made_at = text();
    return r;
  }

  std::string_view table_, data_;
  const std::shared_ptr<void>& owner_;
};

}  // namespace

Message unpack(const WireHeader& h, std::string_view bytes, const std::shared_ptr<void>& owner) {
  std::string wrong = defect(h, bytes.size());
  check<ValueError>(wrong.empty(), kRpcOperation, "a message that cannot be: {}", wrong);
  Message m;
  m.kind = static_cast<Kind>(h.kind);
  m.from = static_cast<int>(h.from);
  m.number = h.number;
  m.function = h.function;
  std::string_view table = bytes.substr(0, h.table_bytes);
  m.extension = bytes.substr(h.table_bytes, h.extension_bytes);
  m.body = bytes.substr(h.table_bytes + h.extension_bytes, h.body_bytes);
  std::string_view data = h.data_bytes > 0 ? bytes.substr(data_at(h)) : std::string_view();
  NoGrad guard;
  Unpacker(table, data, owner).into(m);
  return m;
}

}  // namespace detail

// ---- Values

void Writer::bytes(const void* data, size_t size) {
  if (size > 0) message_.body.append(static_cast<const char*>(data), size);
}
void Writer::count(size_t count) { number(static_cast<uint64_t>(count)); }
void Writer::string(std::string_view text) {
  count(text.size());
  bytes(text.data(), text.size());
}
// A byte stands for it, so that what follows a count always has bytes.
void Writer::tensor(const Tensor& tensor) {
  number(uint8_t{0});
  message_.tensors.push_back(tensor);
}

void Reader::bytes(void* data, size_t size) {
  if (size > message_.body.size() - at_)
    wrong(fmt::format("{} bytes, and {} are left", size, message_.body.size() - at_));
  if (size > 0) std::memcpy(data, message_.body.data() + at_, size);
  at_ += size;
}
size_t Reader::count(size_t each) {
  auto n = number<uint64_t>();
  if (n > (message_.body.size() - at_) / each)
    wrong(fmt::format("{} items, and {} bytes are left", n, message_.body.size() - at_));
  return n;
}
std::string Reader::string() {
  size_t size = count();
  std::string text = message_.body.substr(at_, size);
  at_ += size;
  return text;
}
Tensor Reader::tensor() {
  (void)number<uint8_t>();
  if (tensors_ >= message_.tensors.size()) wrong("one more tensor than there are");
  return std::move(message_.tensors[tensors_++]);
}
void Reader::end() const {
  if (at_ != message_.body.size() || tensors_ != message_.tensors.size() || references_ != message_.references.size())
    wrong(fmt::format("nothing more, and there are {} bytes, {} tensors and {} references", message_.body.size() - at_,
                      message_.tensors.size() - tensors_, message_.references.size() - references_));
}
void Reader::wrong(const std::string& what) const {
  fail<ValueError>(
      detail::kRpcOperation,
      "a message does not hold what the program expects: it wants {}. Do all workers run the same program?", what);
}
Reader::Level::Level(Reader& reader) : reader_(reader) {
  if (++reader.depth_ > detail::kMaxDepth) {
    --reader.depth_;
    reader.wrong(fmt::format("values inside of values, {} deep", detail::kMaxDepth));
  }
}

bool detail::read_flag(Reader& in) {
  auto byte = in.number<uint8_t>();
  if (byte > 1) in.wrong(fmt::format("a truth value, and finds {}", byte));
  return byte == 1;
}
DType detail::read_dtype(Reader& in) {
  auto number = in.number<uint8_t>();
  if (number >= kDTypes) in.wrong(fmt::format("a dtype, and finds number {}", number));
  return static_cast<DType>(number);
}

}  // namespace tutti::rpc
