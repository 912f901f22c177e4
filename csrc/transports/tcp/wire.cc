#include "transports/tcp/wire.h"

#include <bit>
#include <cstdio>
#include <cstring>

namespace collectives::wire {
namespace {

template <typename T>
T little_endian(T value) {
  if constexpr (std::endian::native == std::endian::big && sizeof(T) > 1) {
    T swapped = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      swapped = static_cast<T>((swapped << 8) | ((value >> (8 * i)) & 0xff));
    }
    return swapped;
  }
  return value;
}

template <typename T>
void put(std::byte* out, std::size_t offset, T value) {
  value = little_endian(value);
  std::memcpy(out + offset, &value, sizeof(T));
}

template <typename T>
T get(const std::byte* in, std::size_t offset) {
  T value;
  std::memcpy(&value, in + offset, sizeof(T));
  return little_endian(value);
}

bool length_is_valid(FrameType type, std::uint32_t length) {
  switch (type) {
    case FrameType::kData:
      return length > 0 && length <= static_cast<std::uint32_t>(kMaxFrameBytes);
    case FrameType::kAbort:
      return length <= kMaxReportBytes;
    default:
      return length == 0;
  }
}

}  // namespace

void encode(const FrameHeader& header, std::byte* out) {
  const Signature& s = header.signature;
  put<std::uint32_t>(out, 0, kMagic);
  put<std::uint8_t>(out, 4, static_cast<std::uint8_t>(header.type));
  put<std::uint8_t>(out, 5, header.first ? 1 : 0);
  put<std::uint16_t>(out, 6, 0);
  put<std::uint32_t>(out, 8, header.communicator);
  put<std::uint32_t>(out, 12, header.length);
  put<std::uint64_t>(out, 16, header.sequence);
  put<std::uint64_t>(out, 24, header.credit);
  put<std::uint8_t>(out, 32, s.collective);
  put<std::uint8_t>(out, 33, s.op);
  put<std::uint8_t>(out, 34, s.dtype);
  put<std::uint8_t>(out, 35, s.algorithm);
  put<std::uint16_t>(out, 36, s.root);
  put<std::uint16_t>(out, 38, s.tensors);
  put<std::uint64_t>(out, 40, s.count_hash);
  put<std::uint32_t>(out, 48, header.streams_opened);
  put<std::uint32_t>(out, 52, 0);
}

bool decode(const std::byte* in, FrameHeader* header, std::string* error) {
  const auto magic = get<std::uint32_t>(in, 0);
  const auto type = get<std::uint8_t>(in, 4);
  const auto flags = get<std::uint8_t>(in, 5);
  const auto reserved = get<std::uint16_t>(in, 6);
  const auto reserved_end = get<std::uint32_t>(in, 52);
  header->type = static_cast<FrameType>(type);
  header->first = (flags & 1) != 0;
  header->communicator = get<std::uint32_t>(in, 8);
  header->length = get<std::uint32_t>(in, 12);
  header->sequence = get<std::uint64_t>(in, 16);
  header->credit = get<std::uint64_t>(in, 24);
  header->signature.collective = get<std::uint8_t>(in, 32);
  header->signature.op = get<std::uint8_t>(in, 33);
  header->signature.dtype = get<std::uint8_t>(in, 34);
  header->signature.algorithm = get<std::uint8_t>(in, 35);
  header->signature.root = get<std::uint16_t>(in, 36);
  header->signature.tensors = get<std::uint16_t>(in, 38);
  header->signature.count_hash = get<std::uint64_t>(in, 40);
  header->streams_opened = get<std::uint32_t>(in, 48);
  const bool known =
      type >= static_cast<std::uint8_t>(FrameType::kData) && type <= static_cast<std::uint8_t>(FrameType::kStreams);
  if (magic == kMagic && known && flags <= 1 && reserved == 0 && reserved_end == 0 &&
      length_is_valid(header->type, header->length)) {
    return true;
  }
  char text[160];
  std::snprintf(text, sizeof(text),
                "malformed frame: magic 0x%08x, type %u, flags 0x%02x, length %u, reserved 0x%x 0x%x", magic, type,
                flags, header->length, reserved, reserved_end);
  *error = text;
  return false;
}

}  // namespace collectives::wire
