#include "base/safetensors_json.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/checked.h"
#include "base/raise.h"

namespace qkv {
namespace {

using nlohmann::json;

/// Deeper nesting has no meaning in a header, however far a parser could follow it.
constexpr int kMaxDepth = 16;

/// Where the parser stands.
enum class Place { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets, kPassedOver };

/// Takes the events of nlohmann's parser one by one, so that no tree is built: 100 MB of brackets would make one of
/// gigabytes. Returns true from every event; what is wrong is thrown.
class HeaderReader {
 public:
  HeaderReader(SafetensorsHeader& header, std::string_view file) : header_(header), file_(file) {}

  bool null() { return unexpected("null"); }
  bool boolean(bool value) { return unexpected(value ? "true" : "false"); }
  // Only what has a minus sign comes here, -0 included.
  bool number_integer(std::int64_t value) { return unexpected(value == 0 ? "-0" : std::to_string(value)); }
  bool number_unsigned(std::uint64_t value);
  bool number_float(double /*value*/, const std::string& text) { return unexpected(safetensors_printable(text)); }
  bool string(std::string& value);
  bool binary(json::binary_t& /*value*/) { return true; }  // JSON has none
  bool start_object(std::size_t /*elements*/);
  bool key(std::string& name);
  bool end_object();
  bool start_array(std::size_t /*elements*/);
  bool end_array();
  bool parse_error(std::size_t position, const std::string& /*token*/, const json::exception& error);

 private:
  bool unexpected(std::string_view got) const;
  std::string tensor() const { return "tensor '" + safetensors_printable(name_) + "'"; }
  void descend();
  void begin_tensor();
  void begin_field(const std::string& name);
  void end_tensor();
  void add_extent(std::int64_t extent);
  void add_offset(std::int64_t offset);

  SafetensorsHeader& header_;
  std::string_view file_;
  Place place_ = Place::kStart;
  int depth_ = 0;
  bool has_metadata_ = false;
  std::string name_;   ///< the last key of the root
  std::string field_;  ///< the last key below it
  SafetensorsEntry entry_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::int64_t num_offsets_ = 0;
  std::array<std::int64_t, kMaxRank> extents_ = {};
  bool has_elements_ = true;
  std::optional<std::int64_t> product_ = 1;
};

/// What stands where something else belongs.
bool HeaderReader::unexpected(std::string_view got) const {
  switch (place_) {
    case Place::kRoot:
      if (name_ == "__metadata__") raise<ValueError>("{}: __metadata__ is {}, expected an object", file_, got);
      raise<ValueError>("{}: {} is {}, expected an object", file_, tensor(), got);
    case Place::kMetadata:
      raise<ValueError>("{}: metadata '{}' is {}, expected a string", file_, safetensors_printable(field_), got);
    case Place::kTensor:
      if (field_ == "dtype") raise<ValueError>("{}: {}: dtype is {}, expected a string", file_, tensor(), got);
      if (field_ == "shape" || field_ == "data_offsets") {
        raise<ValueError>("{}: {}: {} is {}, expected an array", file_, tensor(), field_, got);
      }
      return true;
    case Place::kShape:
    case Place::kOffsets:
      raise<ValueError>("{}: {}: {} holds {}, expected whole numbers from 0 to {}", file_, tensor(), field_, got,
                        std::numeric_limits<std::int64_t>::max());
    case Place::kStart:
    case Place::kPassedOver:
      break;
  }
  return true;
}

bool HeaderReader::number_unsigned(std::uint64_t value) {
  const bool fits = value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (fits && place_ == Place::kShape) {
    add_extent(static_cast<std::int64_t>(value));
  } else if (fits && place_ == Place::kOffsets) {
    add_offset(static_cast<std::int64_t>(value));
  } else {
    return unexpected(std::to_string(value));
  }
  return true;
}

bool HeaderReader::string(std::string& value) {
  if (place_ == Place::kMetadata) {
    header_.metadata[field_] = std::move(value);
  } else if (place_ == Place::kTensor && field_ == "dtype") {
    entry_.dtype = std::move(value);
  } else {
    return unexpected("a string");
  }
  return true;
}

void HeaderReader::descend() {
  if (++depth_ > kMaxDepth) raise<ValueError>("{}: the header is nested deeper than {} levels", file_, kMaxDepth);
}

bool HeaderReader::start_object(std::size_t /*elements*/) {
  descend();
  if (place_ == Place::kStart) {
    place_ = Place::kRoot;
  } else if (place_ == Place::kRoot && name_ == "__metadata__") {
    place_ = Place::kMetadata;
  } else if (place_ == Place::kRoot) {
    begin_tensor();
  } else {
    unexpected("an object");
    place_ = Place::kPassedOver;
  }
  return true;
}

bool HeaderReader::start_array(std::size_t /*elements*/) {
  descend();
  if (place_ == Place::kTensor && field_ == "shape") {
    place_ = Place::kShape;
  } else if (place_ == Place::kTensor && field_ == "data_offsets") {
    place_ = Place::kOffsets;
  } else {
    unexpected("an array");
    place_ = Place::kPassedOver;
  }
  return true;
}

bool HeaderReader::end_array() {
  // Root, tensor, its member: what began at the third level ends where the member does.
  if (--depth_ == 2) place_ = Place::kTensor;
  return true;
}

bool HeaderReader::end_object() {
  --depth_;
  if (place_ == Place::kTensor) end_tensor();
  if (depth_ == 1) place_ = Place::kRoot;
  if (depth_ == 2) place_ = Place::kTensor;
  return true;
}

bool HeaderReader::key(std::string& name) {
  switch (place_) {
    case Place::kRoot:
      name_ = std::move(name);
      if (name_ == "__metadata__" ? std::exchange(has_metadata_, true) : header_.tensors.contains(name_)) {
        raise<ValueError>("{}: the header names '{}' twice", file_, safetensors_printable(name_));
      }
      break;
    case Place::kMetadata:
      field_ = std::move(name);
      if (header_.metadata.contains(field_)) {
        raise<ValueError>("{}: metadata '{}' is there twice", file_, safetensors_printable(field_));
      }
      break;
    case Place::kTensor:
      begin_field(name);
      break;
    default:
      break;
  }
  return true;
}

void HeaderReader::begin_field(const std::string& name) {
  field_ = name;
  bool twice = false;
  if (field_ == "dtype") twice = std::exchange(has_dtype_, true);
  if (field_ == "shape") twice = std::exchange(has_shape_, true);
  if (field_ == "data_offsets") twice = std::exchange(has_offsets_, true);
  if (twice) raise<ValueError>("{}: {}: {} is there twice", file_, tensor(), field_);
}

void HeaderReader::begin_tensor() {
  place_ = Place::kTensor;
  entry_ = {};
  has_dtype_ = has_shape_ = has_offsets_ = false;
  num_offsets_ = 0;
  has_elements_ = true;
  product_ = 1;
}

void HeaderReader::end_tensor() {
  const char* missing = !has_dtype_ ? "dtype" : !has_shape_ ? "shape" : !has_offsets_ ? "data_offsets" : nullptr;
  if (missing != nullptr) raise<ValueError>("{}: {}: {} is missing", file_, tensor(), std::string_view(missing));
  if (num_offsets_ != 2) {
    raise<ValueError>("{}: {}: data_offsets hold {} numbers, expected 2", file_, tensor(), num_offsets_);
  }
  if (has_elements_ && !product_) {
    raise<ValueError>("{}: {}: shape has more elements than 63 bits can count", file_, tensor());
  }
  entry_.elements = has_elements_ ? *product_ : 0;
  const std::size_t kept = std::min<std::size_t>(static_cast<std::size_t>(entry_.rank), extents_.size());
  entry_.shape = Extents(std::span<const std::int64_t>(extents_.data(), kept));
  header_.tensors.emplace(name_, std::move(entry_));
}

void HeaderReader::add_extent(std::int64_t extent) {
  if (entry_.rank < kMaxRank) extents_[static_cast<std::size_t>(entry_.rank)] = extent;
  ++entry_.rank;
  has_elements_ = has_elements_ && extent != 0;
  if (product_) product_ = checked_mul(*product_, extent);
}

void HeaderReader::add_offset(std::int64_t offset) {
  if (num_offsets_ == 0) entry_.begin = offset;
  if (num_offsets_ == 1) entry_.end = offset;
  ++num_offsets_;
}

/// Without what nlohmann puts around its reason: its own numbers, the place again, and the token, however long it is.
std::string reason_of(std::string_view what) {
  if (const std::size_t number = what.find("] "); number != std::string_view::npos) what.remove_prefix(number + 2);
  if (what.starts_with("parse error at")) what.remove_prefix(std::min(what.find(": ") + 2, what.size()));
  return safetensors_printable(what.substr(0, what.find("; last read: ")));
}

bool HeaderReader::parse_error(std::size_t position, const std::string& /*token*/, const json::exception& error) {
  raise<ValueError>("{}: no valid JSON at byte {} of the header: {}", file_, position, reason_of(error.what()));
}

}  // namespace

SafetensorsHeader read_safetensors_json(std::string_view text, std::string_view file) {
  SafetensorsHeader header;
  HeaderReader reader(header, file);
  json::sax_parse(text.begin(), text.end(), &reader);
  return header;
}

std::optional<std::string> json_quoted(std::string_view text) {
  try {
    return json(text).dump();
  } catch (const json::type_error&) {
    return std::nullopt;
  }
}

std::string safetensors_printable(std::string_view text, std::size_t limit) {
  const bool whole = text.size() <= limit;
  if (!whole) {
    const auto continues = [&] { return (static_cast<unsigned char>(text[limit]) & 0xC0U) == 0x80U; };
    while (limit > 0 && continues()) --limit;
  }
  const std::string quoted = json(text.substr(0, limit)).dump(-1, ' ', false, json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2) + (whole ? "" : "...");
}

}  // namespace qkv
