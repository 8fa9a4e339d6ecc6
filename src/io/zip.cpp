#include "io/zip.h"

#include <zlib.h>

#include <algorithm>

#include "io/blob.h"

namespace tutti::io {
namespace {

constexpr const char* kZipOperation = "npz";
constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                   kLocator64 = 0x07064b50;
constexpr uint32_t kSee64 = 0xffffffff;  // the number is in the zip64 record
constexpr uint16_t kStored = 0, kDeflated = 8, kZip64Extra = 1, kUtf8Flag = 0x800;

struct Directory {
  uint64_t offset, count;
};

struct Reader {
  std::string_view bytes;
  const std::string& name;
  template <class T>
  T get(uint64_t at) const {
    return number<T>(bytes, at, kZipOperation, name);
  }
};

// The end record is the archive's last, but for a comment whose length it states.
uint64_t find_end(const Reader& file) {
  constexpr uint64_t size = 22;
  check<FileError>(file.bytes.size() >= size, kZipOperation, "{}: too short for a zip archive", file.name);
  uint64_t last = file.bytes.size() - size, first = last > 0xffff ? last - 0xffff : 0;
  for (uint64_t at = last + 1; at-- > first;)
    if (file.get<uint32_t>(at) == kEnd && at + size + file.get<uint16_t>(at + 20) == file.bytes.size()) return at;
  fail<FileError>(kZipOperation, "{}: no end of a zip archive", file.name);
}

Directory find_directory(const Reader& file) {
  uint64_t end = find_end(file);
  Directory directory{file.get<uint32_t>(end + 16), file.get<uint16_t>(end + 10)};
  if (end >= 20 && file.get<uint32_t>(end - 20) == kLocator64) {
    auto at = file.get<uint64_t>(end - 20 + 8);
    check<FileError>(file.get<uint32_t>(at) == kEnd64, kZipOperation, "{}: its zip64 record is damaged", file.name);
    directory = {file.get<uint64_t>(at + 48), file.get<uint64_t>(at + 32)};
  }
  check<FileError>(directory.offset <= end && directory.count <= (end - directory.offset) / 46, kZipOperation,
                   "{}: {} members at byte {} cannot be", file.name, directory.count, directory.offset);
  return directory;
}

// The zip64 extra field holds, in this order, those of size, stored size and offset that did not fit their places.
void read_zip64(const Reader& file, uint64_t at, uint64_t length, ZipMember& member) {
  for (uint64_t end = at + length; end - at >= 4;) {
    uint64_t id = file.get<uint16_t>(at), size = file.get<uint16_t>(at + 2);
    at += 4;
    check<FileError>(size <= end - at, kZipOperation, "{}: {} has a damaged extra field", file.name, member.name);
    if (id == kZip64Extra) {
      uint64_t stop = at + size;
      for (uint64_t* field : {&member.size, &member.stored, &member.offset})
        if (*field == kSee64 && stop - at >= 8) {
          *field = file.get<uint64_t>(at);
          at += 8;
        }
      return;
    }
    at += size;
  }
}

void locate_data(const Reader& file, ZipMember& member) {
  uint64_t at = member.offset;
  check<FileError>(at <= file.bytes.size() && file.get<uint32_t>(at) == kLocal, kZipOperation,
                   "{}: {} is not where it should be", file.name, member.name);
  member.offset = at + 30 + file.get<uint16_t>(at + 26) + file.get<uint16_t>(at + 28);
  part(file.bytes, member.offset, member.stored, kZipOperation, file.name);
}

}  // namespace

std::vector<ZipMember> read_zip(std::string_view bytes, const std::string& name) {
  Reader file{bytes, name};
  auto [at, count] = find_directory(file);
  std::vector<ZipMember> members;
  for (uint64_t i = 0; i < count; ++i) {
    check<FileError>(file.get<uint32_t>(at) == kCentral, kZipOperation, "{}: member {} is damaged", name, i);
    uint64_t name_length = file.get<uint16_t>(at + 28), extra = file.get<uint16_t>(at + 30),
             comment = file.get<uint16_t>(at + 32);
    ZipMember member{std::string(part(bytes, at + 46, name_length, kZipOperation, name)),
                     file.get<uint32_t>(at + 42),
                     file.get<uint32_t>(at + 20),
                     file.get<uint32_t>(at + 24),
                     file.get<uint32_t>(at + 16),
                     false};
    auto method = file.get<uint16_t>(at + 10);
    check<FileError>((file.get<uint16_t>(at + 8) & 1) == 0, kZipOperation, "{}: {} is encrypted", name, member.name);
    check<FileError>(method == kStored || method == kDeflated, kZipOperation, "{}: {} is compressed by method {}", name,
                     member.name, method);
    member.packed = method == kDeflated;
    part(bytes, at + 46 + name_length, extra, kZipOperation, name);
    read_zip64(file, at + 46 + name_length, extra, member);
    locate_data(file, member);
    check<FileError>(member.packed || member.stored == member.size, kZipOperation, "{}: {} has two sizes", name,
                     member.name);
    members.push_back(std::move(member));
    at += 46 + name_length + extra + comment;
  }
  return members;
}

struct Inflate::Stream {
  z_stream z{};
  std::string_view left;
  bool ended = false;
};

Inflate::Inflate(std::string_view packed, std::string where, Wrapping wrapping)
    : stream_(std::make_unique<Stream>()), where_(std::move(where)) {
  stream_->left = packed;
  TUTTI_ASSERT(::inflateInit2(&stream_->z, wrapping == gzip ? MAX_WBITS + 16 : -MAX_WBITS) == Z_OK);
}

Inflate::~Inflate() { ::inflateEnd(&stream_->z); }

uint64_t Inflate::some(void* out, uint64_t bytes) {
  constexpr uint64_t most = 1 << 30;  // zlib counts in 32 bits
  z_stream& z = stream_->z;
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stream_->left.data()));
  z.avail_in = static_cast<uInt>(std::min(most, uint64_t{stream_->left.size()}));
  z.next_out = static_cast<Bytef*>(out);
  uInt room = z.avail_out = static_cast<uInt>(std::min(most, bytes));
  uInt available = z.avail_in;
  int result = ::inflate(&z, Z_NO_FLUSH);
  check<FileError>(result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR, "inflate",
                   "{}: the compressed data is damaged", where_);
  stream_->left.remove_prefix(available - z.avail_in);
  stream_->ended = result == Z_STREAM_END;
  return room - z.avail_out;
}

void Inflate::read(void* out, uint64_t bytes) {
  for (auto* to = static_cast<char*>(out); bytes > 0;) {
    uint64_t got = some(to, bytes);
    check<FileError>(got > 0, "inflate", "{}: the compressed data ends {} bytes too early", where_, bytes);
    to += got;
    bytes -= got;
  }
}

void Inflate::finish() {
  char more;
  check<FileError>(some(&more, 1) == 0, "inflate", "{}: the compressed data is longer than stated", where_);
  check<FileError>(stream_->ended && stream_->left.empty(), "inflate",
                   "{}: the compressed data does not end where it should", where_);
}

uint32_t crc32_of(std::string_view bytes, uint32_t before) {
  if (bytes.empty()) return before;  // a null pointer asks zlib for its initial value
  return static_cast<uint32_t>(::crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

void ZipWriter::write(const std::string& bytes) {
  out_.write(bytes);
  offset_ += bytes.size();
}

void ZipWriter::add(const std::string& name, std::string_view head, std::string_view data) {
  uint64_t size = head.size() + data.size(), start = offset_;
  bool large = size > limit_, far = start > limit_;
  uint32_t checksum = crc32_of(data, crc32_of(head));
  uint32_t short_size = large ? kSee64 : static_cast<uint32_t>(size);
  auto common = [&](std::string& out, size_t extra) {
    put<uint16_t>(out, large || far ? 45 : 20);  // the version of the format needed to read it
    put<uint16_t>(out, kUtf8Flag);
    put<uint16_t>(out, kStored);
    put<uint32_t>(out, 0x00210000);  // 1980-01-01: the same bytes whenever it is written
    put<uint32_t>(out, checksum);
    put<uint32_t>(out, short_size);
    put<uint32_t>(out, short_size);
    put<uint16_t>(out, static_cast<uint16_t>(name.size()));
    put<uint16_t>(out, static_cast<uint16_t>(extra));
  };
  auto sizes64 = [&](std::string& out) {
    for (int i = 0; large && i < 2; ++i) put<uint64_t>(out, size);
  };
  auto extra_head = [&](std::string& out, size_t length) {
    put<uint16_t>(out, kZip64Extra);
    put<uint16_t>(out, static_cast<uint16_t>(length));
  };
  std::string local;
  put<uint32_t>(local, kLocal);
  common(local, large ? 20 : 0);
  local += name;
  if (large) extra_head(local, 16);
  sizes64(local);
  write(local);
  out_.write(head);
  out_.write(data);
  offset_ += size;

  size_t extra = (large ? 16 : 0) + (far ? 8 : 0);
  put<uint32_t>(directory_, kCentral);
  put<uint16_t>(directory_, 45);
  common(directory_, extra ? extra + 4 : 0);
  directory_.append(10, '\0');  // no comment, first disk, no attributes
  put<uint32_t>(directory_, far ? kSee64 : static_cast<uint32_t>(start));
  directory_ += name;
  if (extra) extra_head(directory_, extra);
  sizes64(directory_);
  if (far) put<uint64_t>(directory_, start);
  ++count_;
}

void ZipWriter::finish() {
  uint64_t start = offset_, size = directory_.size();
  write(directory_);
  std::string end;
  bool large = start > limit_ || size > limit_ || count_ >= 0xffff;
  if (large) {
    uint64_t record = offset_;
    put<uint32_t>(end, kEnd64);
    put<uint64_t>(end, 44);  // bytes of this record after here
    put<uint16_t>(end, 45);
    put<uint16_t>(end, 45);
    put<uint64_t>(end, 0);  // disks
    put<uint64_t>(end, count_);
    put<uint64_t>(end, count_);
    put<uint64_t>(end, size);
    put<uint64_t>(end, start);
    put<uint32_t>(end, kLocator64);
    put<uint32_t>(end, 0);
    put<uint64_t>(end, record);
    put<uint32_t>(end, 1);
  }
  put<uint32_t>(end, kEnd);
  put<uint32_t>(end, 0);
  auto count = static_cast<uint16_t>(std::min<uint64_t>(count_, 0xffff));
  put<uint16_t>(end, count);
  put<uint16_t>(end, count);
  put<uint32_t>(end, large ? kSee64 : static_cast<uint32_t>(size));
  put<uint32_t>(end, large ? kSee64 : static_cast<uint32_t>(start));
  put<uint16_t>(end, 0);
  write(end);
}

}  // namespace tutti::io
