// What is written and read; what is refused is in safetensors_malformed_test.cc.
#include "base/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "qkv/error.h"
#include "support/elements.h"
#include "support/safetensors_bytes.h"
#include "support/temporary_folder.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;
using support::read_bytes;
using support::safetensors_bytes;
using support::TemporaryFolder;
using support::write_bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Metadata = std::map<std::string, std::string>;

/// The bytes of a tensor that owns its memory.
std::string bytes_of(const Tensor& tensor) {
  return {tensor.as<char>(), static_cast<std::size_t>(tensor.num_elements()) * size_of(tensor.dtype())};
}

/// Written to a file, then read from it.
Tensor through_a_file(const ConstTensorView& view) {
  const TemporaryFolder folder;
  const std::vector<NamedView> tensors = {{"x", view}};
  write_safetensors(folder.path() / "f", {}, tensors);
  return SafetensorsFile(folder.path() / "f").read("x");
}

/// Shape and elements; the elements are numbers.
void expect_same(const ConstTensorView& expected, const ConstTensorView& got) {
  ASSERT_EQ(to_string(expected.shape()), to_string(got.shape()));
  ASSERT_EQ(expected.dtype(), got.dtype());
  support::for_each_index(expected.shape(), [&](const Extents& index) {
    ASSERT_EQ(support::read(expected, index), support::read(got, index)) << to_string(index);
  });
}

Tensor counted(const Extents& shape, Dtype dtype) {
  Tensor tensor(shape, dtype);
  double next = 0;
  support::for_each_index(shape, [&](const Extents& index) { support::write(tensor, index, ++next); });
  return tensor;
}

// One float32 tensor and one text, as the format's description has it: every byte by hand.
constexpr std::string_view kHeader =
    R"({"__metadata__":{"a":"b"},"k":{"dtype":"F32","shape":[2],"data_offsets":[0, 8]}})";
constexpr std::string_view kData("\x00\x00\xc0\x3f\x00\x00\x00\xc0", 8);  // 1.5, -2
constexpr std::string_view kLength("\x50\0\0\0\0\0\0\0", 8);

TEST(Safetensors, ReadsAFileMadeByHand) {
  const TemporaryFolder folder;
  write_bytes(folder.path() / "f", std::string(kLength).append(kHeader).append(kData));
  const SafetensorsFile file(folder.path() / "f");
  EXPECT_EQ(file.metadata(), (Metadata{{"a", "b"}}));
  EXPECT_THAT(file.names(), ElementsAre("k"));
  EXPECT_TRUE(file.contains("k"));
  EXPECT_FALSE(file.contains("__metadata__"));
  EXPECT_EQ(file.dtype("k"), Dtype::kFloat32);
  EXPECT_EQ(to_string(file.shape("k")), "[2]");
  const Tensor k = file.read("k");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(k.as<float>()) % 64, 0U);
  EXPECT_EQ(k.as<float>()[0], 1.5F);
  EXPECT_EQ(k.as<float>()[1], -2.0F);
}

TEST(Safetensors, WritesTheBytesMadeByHand) {
  const TemporaryFolder folder;
  const std::vector<float> k = {1.5F, -2.0F};
  const std::vector<NamedView> tensors = {{"k", view(k.data(), {2})}};
  write_safetensors(folder.path() / "f", {{"a", "b"}}, tensors);
  EXPECT_EQ(read_bytes(folder.path() / "f"), std::string(kLength).append(kHeader).append(kData));
}

TEST(Safetensors, AFileMayBeEmpty) {
  const TemporaryFolder folder;
  write_safetensors(folder.path() / "f", {}, {});
  EXPECT_EQ(read_bytes(folder.path() / "f"), safetensors_bytes("{}      ", ""));
  EXPECT_TRUE(SafetensorsFile(folder.path() / "f").names().empty());
}

TEST(Safetensors, EveryDtypeKeepsItsBits) {
  // NaNs with a payload, infinities, minus zero: no arithmetic may touch them.
  const std::string bits("\x01\xff\x80\x7f\x00\xc0\x7f\x55\x01\x00\x00\xf0\xff\x02\x00\x80", 16);
  const std::map<Dtype, std::string> names = {
      {Dtype::kFloat64, "F64"}, {Dtype::kFloat32, "F32"}, {Dtype::kFloat16, "F16"}, {Dtype::kBFloat16, "BF16"},
      {Dtype::kInt64, "I64"},   {Dtype::kInt32, "I32"},   {Dtype::kInt16, "I16"},   {Dtype::kInt8, "I8"},
      {Dtype::kUInt8, "U8"},    {Dtype::kBool, "BOOL"}};
  for (const auto& [dtype, name] : names) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    const std::string data = dtype == Dtype::kBool ? std::string("\0\1\1\0", 4) : bits;
    const auto extent = static_cast<std::int64_t>(data.size() / size_of(dtype));
    Tensor tensor({extent}, dtype);
    std::memcpy(tensor.view().data(), data.data(), static_cast<std::size_t>(extent) * size_of(dtype));
    const std::vector<NamedView> tensors = {{"x", tensor.view()}};
    write_safetensors(folder.path() / "f", {}, tensors);
    EXPECT_THAT(read_bytes(folder.path() / "f"), HasSubstr("\"dtype\":\"" + name + "\""));
    const SafetensorsFile file(folder.path() / "f");
    EXPECT_EQ(file.dtype("x"), dtype);
    EXPECT_EQ(bytes_of(file.read("x")), bytes_of(tensor));
  }
}

TEST(Safetensors, ViewsOfAnyStridesBecomeRowMajor) {
  const Tensor whole = counted({4, 6, 5}, Dtype::kFloat32);
  const ConstTensorView view = whole.view();
  const float* last = whole.as<float>() + whole.num_elements() - 1;
  for (const ConstTensorView& part :
       {view.permute({2, 0, 1}), view.permute({1, 0, 2}), view.slice(1, 2, 5), view.slice(2, 1, 2).permute({0, 2, 1}),
        view.slice(0, 1, 2), view.slice(2, 1, 4).broadcast_to({2, 4, 6, 3}),
        ConstTensorView(last, Dtype::kFloat32, {4, 6, 5}, {-30, -5, -1}),
        ConstTensorView(whole.as<float>(), Dtype::kFloat32, {3, 4}, {0, 0}),
        // The stride of an axis of one element may be anything.
        ConstTensorView(whole.as<float>(), Dtype::kFloat32, {2, 1, 3, 1},
                        {7, std::numeric_limits<std::int64_t>::max(), 2, std::numeric_limits<std::int64_t>::min()})}) {
    SCOPED_TRACE(to_string(part.shape()) + " " + to_string(part.strides()));
    expect_same(part, through_a_file(part));
  }
}

TEST(Safetensors, RanksFromNoneToEight) {
  const Tensor scalar = support::tensor_of({}, Dtype::kFloat64, {2.5});
  expect_same(scalar, through_a_file(scalar));
  const Tensor deep = counted({1, 2, 1, 3, 2, 1, 2, 2}, Dtype::kInt32);
  expect_same(deep, through_a_file(deep));
  expect_same(deep.view().permute({7, 6, 5, 4, 3, 2, 1, 0}),
              through_a_file(deep.view().permute({7, 6, 5, 4, 3, 2, 1, 0})));
}

TEST(Safetensors, ViewsWithoutElements) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  const ConstTensorView empty(nullptr, Dtype::kFloat32, {kHuge, 0, kHuge}, {kHuge, kHuge, kHuge});
  EXPECT_EQ(to_string(through_a_file(empty).shape()), to_string(empty.shape()));
}

TEST(Safetensors, MoreThanTheBufferHolds) {
  const Tensor large = counted({300, 257}, Dtype::kFloat32);
  expect_same(large, through_a_file(large));
  expect_same(large.view().permute({1, 0}), through_a_file(large.view().permute({1, 0})));
  Tensor flags({70'001}, Dtype::kBool);
  for (int i = 0; i < 70'001; ++i) flags.as<bool>()[i] = i % 3 == 0;
  expect_same(flags, through_a_file(flags));
}

TEST(Safetensors, WiderElementsComeFirstSoThatAllAreAligned) {
  const TemporaryFolder folder;
  const std::vector<std::int8_t> bytes = {1, 2, 3};
  const double wide = 1;
  const std::vector<std::int16_t> halves = {4, 5};
  const std::vector<NamedView> tensors = {{"b", view(bytes.data(), {3})},
                                          {"h", view(halves.data(), {2})},
                                          {"d", view(&wide, {})},
                                          {"a", view(bytes.data(), {1})}};
  write_safetensors(folder.path() / "f", {}, tensors);
  const std::string written = read_bytes(folder.path() / "f");
  EXPECT_EQ(written.size() % 8, 0U) << "8 + header + 16 bytes of data";
  EXPECT_THAT(written, HasSubstr(R"("a":{"dtype":"I8","shape":[1],"data_offsets":[15, 16]})"));
  EXPECT_THAT(written, HasSubstr(R"("b":{"dtype":"I8","shape":[3],"data_offsets":[12, 15]})"));
  EXPECT_THAT(written, HasSubstr(R"("d":{"dtype":"F64","shape":[],"data_offsets":[0, 8]})"));
  EXPECT_THAT(written, HasSubstr(R"("h":{"dtype":"I16","shape":[2],"data_offsets":[8, 12]})"));
  const SafetensorsFile file(folder.path() / "f");
  EXPECT_THAT(file.names(), ElementsAre("a", "b", "d", "h"));
  EXPECT_EQ(file.read("h").as<std::int16_t>()[1], 5);
  EXPECT_EQ(file.read("a").as<std::int8_t>()[0], 1);
}

TEST(Safetensors, TextOfAnyKindInNamesAndMetadata) {
  const TemporaryFolder folder;
  const Metadata metadata = {{"clé \"ü\"", "\\ / \n\t\x01 \xf0\x9f\x90\xa2"}, {"", ""}, {"json", R"({"a": [1, "}"]})"}};
  const float x = 3;
  const std::vector<NamedView> tensors = {{"", view(&x, {})}, {"层.0.\"k\"\n", view(&x, {1})}, {"{", view(&x, {1, 1})}};
  write_safetensors(folder.path() / "f", metadata, tensors);
  const SafetensorsFile file(folder.path() / "f");
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_THAT(file.names(), ElementsAre("", "{", "层.0.\"k\"\n"));
  EXPECT_EQ(to_string(file.shape("层.0.\"k\"\n")), "[1]");
}

TEST(Safetensors, BoolsAreWrittenAsNoughtAndOne) {
  const std::vector<std::uint8_t> bytes = {0, 1, 2, 255};
  const ConstTensorView flags(bytes.data(), Dtype::kBool, {4}, {1});
  EXPECT_EQ(bytes_of(through_a_file(flags)), std::string("\0\1\1\1", 4));
}

TEST(Safetensors, UnknownDtypesAndMembersHarmNobodyElse) {
  const TemporaryFolder folder;
  write_bytes(folder.path() / "f", safetensors_bytes(R"({"q":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]},
                "k":{"later":{"dtype":[{}],"x":[[1.5,null],"s",true]},"dtype":"U8","shape":[1],"data_offsets":[3,4]}})",
                                                     "\1\2\3\4"));
  const SafetensorsFile file(folder.path() / "f");
  EXPECT_EQ(file.read("k").as<std::uint8_t>()[0], 4);
  EXPECT_EQ(to_string(file.shape("q")), "[3]");
}

/// Until it ends, no file of this process can be longer: what a full disk does, as root too.
class ShortFiles {
 public:
  explicit ShortFiles(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ShortFiles(const ShortFiles&) = delete;
  ShortFiles& operator=(const ShortFiles&) = delete;
  ~ShortFiles() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_ = {};
};

/// What the operating system says of an attempt; an empty code if it succeeds.
template <class Attempt>
std::error_code code_of(Attempt attempt) {
  try {
    attempt();
  } catch (const fs::filesystem_error& error) {
    EXPECT_FALSE(error.path1().empty()) << error.what();
    return error.code();
  }
  return {};
}

TEST(Safetensors, AFailureLeavesTheOldFileAndNothingElse) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "f";
  write_bytes(path, "old");
  const Tensor large({100'000}, Dtype::kFloat32);
  const std::vector<NamedView> tensors = {{"x", large.view()}};
  {
    const ShortFiles limited(200'000);
    EXPECT_EQ(code_of([&] { write_safetensors(path, {}, tensors); }), std::errc::file_too_large);
  }
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(folder.num_files(), 1U);
  write_safetensors(path, {}, tensors);
  EXPECT_EQ(SafetensorsFile(path).read("x").num_elements(), 100'000);
  EXPECT_EQ(folder.num_files(), 1U);
}

TEST(Safetensors, OnlyAFileIsReplaced) {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "d");
  fs::create_directory_symlink("d", folder.path() / "link");
  EXPECT_EQ(code_of([&] { write_safetensors(folder.path() / "d", {}, {}); }), std::errc::is_a_directory);
  EXPECT_EQ(code_of([&] { write_safetensors(folder.path() / "link", {}, {}); }), std::errc::is_a_directory);
  EXPECT_EQ(code_of([&] { write_safetensors(folder.path() / "absent/f", {}, {}); }),
            std::errc::no_such_file_or_directory);
  EXPECT_EQ(folder.num_files(), 2U);
  fs::create_symlink("/dev/null", folder.path() / "null");
  EXPECT_EQ(code_of([&] { write_safetensors(folder.path() / "null", {}, {}); }), std::errc::invalid_argument);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(Safetensors, ALinkStaysOne) {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "d");
  write_bytes(folder.path() / "d/f", "old");
  fs::create_symlink("d/f", folder.path() / "link");
  write_safetensors(folder.path() / "link", {}, {});
  EXPECT_TRUE(fs::is_symlink(folder.path() / "link"));
  EXPECT_EQ(read_bytes(folder.path() / "d/f"), safetensors_bytes("{}      ", ""));
}

TEST(Safetensors, NoFileToReadIsTheSystemsError) {
  const TemporaryFolder folder;
  EXPECT_EQ(code_of([&] { SafetensorsFile(folder.path() / "absent"); }), std::errc::no_such_file_or_directory);
  EXPECT_EQ(code_of([&] { SafetensorsFile{folder.path()}; }), std::errc::is_a_directory);
  EXPECT_EQ(code_of([&] { SafetensorsFile("/dev/zero"); }), std::errc::invalid_argument);
  ASSERT_EQ(mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(code_of([&] { SafetensorsFile(folder.path() / "pipe"); }), std::errc::invalid_argument);
}

TEST(Safetensors, TheWriterRefusesWhatNoFileCanHold) {
  const TemporaryFolder folder;
  const float x = 0;
  const auto text_of = [&](const Metadata& metadata, const std::vector<NamedView>& tensors) -> std::string {
    try {
      write_safetensors(folder.path() / "f", metadata, tensors);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const ConstTensorView one = view(&x, {1});
  EXPECT_THAT(text_of({}, {{"k", one}, {"k", one}}), HasSubstr("tensor 'k' is given twice"));
  EXPECT_THAT(text_of({}, {{"__metadata__", one}}), HasSubstr("no tensor can be named __metadata__"));
  EXPECT_THAT(text_of({}, {{std::string("a\0b", 3), one}}), HasSubstr("tensor 'a\\u0000b': a zero byte in a name"));
  EXPECT_THAT(text_of({}, {{"a\xff", one}}), HasSubstr("tensor 'a\xef\xbf\xbd' is not UTF-8"));
  EXPECT_THAT(text_of({{"\xc0\x80", ""}}, {}), HasSubstr("is not UTF-8"));
  EXPECT_THAT(text_of({{"a", "\xed\xa0\x80"}}, {}), HasSubstr("is not UTF-8"));
  EXPECT_THAT(text_of({}, {{"k", ConstTensorView(nullptr, Dtype::kFloat32, {2}, {1})}}),
              HasSubstr("tensor 'k': the data pointer of [2] is null"));
  constexpr std::int64_t kHuge = std::int64_t{1} << 31;
  EXPECT_THAT(text_of({}, {{"k", ConstTensorView(&x, Dtype::kFloat32, {kHuge, kHuge}, {0, 0})}}),
              HasSubstr("ends beyond 63 bits"));
  EXPECT_THAT(text_of({}, {{"k", ConstTensorView(&x, Dtype::kFloat32, {kHuge, kHuge, kHuge}, {0, 0, 0})}}),
              HasSubstr("tensor 'k': [2147483648, 2147483648, 2147483648] ends beyond 63 bits"));
  EXPECT_EQ(folder.num_files(), 0U);
}

}  // namespace
}  // namespace qkv
