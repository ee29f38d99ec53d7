// Files that are wrong: each kind by hand with what the error says of it, then changed at random.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/safetensors.h"
#include "qkv/error.h"
#include "support/random.h"
#include "support/safetensors_bytes.h"
#include "support/temporary_folder.h"

namespace qkv {
namespace {

namespace fs = std::filesystem;
using support::little_endian;
using support::safetensors_bytes;
using support::TemporaryFolder;
using support::write_bytes;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// What is said of a file of these bytes as it is opened and all of it is read.
std::string said_of(std::string_view bytes) {
  const TemporaryFolder folder;
  write_bytes(folder.path() / "f", bytes);
  try {
    const SafetensorsFile file(folder.path() / "f");
    for (const std::string& name : file.names()) file.read(name);
  } catch (const ValueError& error) {
    std::string text = error.what();
    EXPECT_THAT(text, StartsWith((folder.path() / "f: ").string()));
    EXPECT_LT(text.size(), 1000U);
    return text.substr((folder.path() / "f: ").string().size());
  }
  return "no error";
}

/// The same, of a file with this header and so many bytes of data.
std::string said_of_header(std::string_view header, std::size_t data = 0) {
  return said_of(safetensors_bytes(header, std::string(data, '\0')));
}

/// Of a file with one tensor of 48 bytes, its members like this.
std::string said_of_tensor(const std::string& members) { return said_of_header("{\"k\":{" + members + "}}", 48); }

std::string members(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return std::string("\"dtype\":")
      .append(dtype)
      .append(",\"shape\":")
      .append(shape)
      .append(",\"data_offsets\":")
      .append(offsets);
}

TEST(SafetensorsMalformed, TheUnbrokenOneIsRead) {
  EXPECT_EQ(said_of_tensor(members("\"F32\"", "[3, 4]", "[0, 48]")), "no error");
}

TEST(SafetensorsMalformed, Length) {
  EXPECT_EQ(said_of(""), "0 bytes, expected at least 8 for the length of a header");
  EXPECT_EQ(said_of("1234567"), "7 bytes, expected at least 8 for the length of a header");
  EXPECT_EQ(said_of(little_endian(3) + "{}"), "a header of 3 bytes, expected at most the 2 that follow its length");
  EXPECT_THAT(said_of(little_endian(100'000'001) + "{}"),
              StartsWith("a header of 100000001 bytes, expected at most 1000"));
  EXPECT_THAT(said_of(little_endian(~std::uint64_t{0}) + "{}"), StartsWith("a header of 18446744073709551615 bytes"));
  EXPECT_THAT(said_of("GGUF is another format"), StartsWith("a header of"));
  EXPECT_EQ(said_of(safetensors_bytes("", "")), "the header begins with '', expected '{'");
}

TEST(SafetensorsMalformed, HeadersNearTheLimit) {
  const TemporaryFolder folder;
  write_bytes(folder.path() / "f", little_endian(100'000'000) + "{}");
  // Holes of a sparse file: zero bytes, of which the first is in the way.
  fs::resize_file(folder.path() / "f", 100'000'008);
  try {
    SafetensorsFile(folder.path() / "f");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("at byte 2 of the header: a zero byte"));
  }
}

TEST(SafetensorsMalformed, Json) {
  EXPECT_EQ(said_of_header("[]"), "the header begins with '[', expected '{'");
  EXPECT_EQ(said_of_header(" {}"), "the header begins with ' ', expected '{'");
  EXPECT_THAT(said_of_header("\xef\xbb\xbf{}"), StartsWith("the header begins with '"));
  EXPECT_THAT(said_of_header("{"), StartsWith("no valid JSON at byte 2 of the header: syntax error"));
  EXPECT_THAT(said_of_header("{}}"), StartsWith("no valid JSON at byte 3 of the header: "));
  EXPECT_THAT(said_of_header("{} //"), StartsWith("no valid JSON at byte 4 of the header: "));
  EXPECT_THAT(said_of_header("{\"k\":{\"x\":01}}"), StartsWith("no valid JSON at byte 12 of the header: "));
  EXPECT_THAT(said_of_header("{\"" + std::string(100'000, 'a')), HasSubstr("missing closing quote"));
  EXPECT_THAT(said_of_header("{\"k\":{\"x\":1e999}}"), HasSubstr("number overflow"));
  EXPECT_THAT(said_of_header("{\"k\":{\"x\":" + std::string(100'000, '9') + "e999}}"), HasSubstr("number overflow"));
  EXPECT_EQ(said_of_header(std::string("{}\0{}", 5)), "no valid JSON at byte 2 of the header: a zero byte");
}

TEST(SafetensorsMalformed, TextThatIsNotUtf8) {
  for (const std::string_view text : {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\\ud800"}) {
    SCOPED_TRACE(text);
    EXPECT_THAT(said_of_header("{\"" + std::string(text) + "\":{}}"), HasSubstr("no valid JSON"));
    EXPECT_THAT(said_of_header("{\"__metadata__\":{\"a\":\"" + std::string(text) + "\"}}"), HasSubstr("no valid JSON"));
  }
}

TEST(SafetensorsMalformed, Nesting) {
  for (const std::string_view bracket : {"[", "{\"x\":"}) {
    std::string many;
    for (int i = 0; i < 100'000; ++i) many += bracket;
    EXPECT_THAT(said_of_tensor("\"x\":" + many), "the header is nested deeper than 16 levels");
  }
  const std::string least = members("\"F32\"", "[3, 4]", "[0, 48]") + ",\"x\":";
  EXPECT_EQ(said_of_tensor(least + std::string(14, '[') + std::string(14, ']')), "no error");
  EXPECT_EQ(said_of_tensor(least + std::string(15, '[') + std::string(15, ']')),
            "the header is nested deeper than 16 levels");
}

TEST(SafetensorsMalformed, Duplicates) {
  const std::string k = "\"k\":{" + members("\"U8\"", "[0]", "[0,0]") + "}";
  EXPECT_EQ(said_of_header("{" + k + "," + k + "}"), "the header names 'k' twice");
  EXPECT_EQ(said_of_header("{" + k + ",\"\\u006b\":{}}"), "the header names 'k' twice");
  EXPECT_EQ(said_of_header(R"({"__metadata__":{},"__metadata__":{}})"), "the header names '__metadata__' twice");
  EXPECT_EQ(said_of_header(R"({"__metadata__":{"a":"1","a":"1"}})"), "metadata 'a' is there twice");
  EXPECT_EQ(said_of_tensor(members("\"U8\",\"dtype\":\"U8\"", "[]", "[]")), "tensor 'k': dtype is there twice");
  EXPECT_EQ(said_of_tensor(members("\"U8\"", "[],\"shape\":[]", "[]")), "tensor 'k': shape is there twice");
  EXPECT_EQ(said_of_tensor(members("\"U8\"", "[]", "[],\"data_offsets\":[]")),
            "tensor 'k': data_offsets is there twice");
}

TEST(SafetensorsMalformed, Types) {
  EXPECT_EQ(said_of_header(R"({"__metadata__":null})"), "__metadata__ is null, expected an object");
  EXPECT_EQ(said_of_header(R"({"__metadata__":["a"]})"), "__metadata__ is an array, expected an object");
  EXPECT_EQ(said_of_header(R"({"__metadata__":{"a":1.50}})"), "metadata 'a' is 1.50, expected a string");
  EXPECT_EQ(said_of_header(R"({"__metadata__":{"a":{}}})"), "metadata 'a' is an object, expected a string");
  EXPECT_EQ(said_of_header(R"({"k":[]})"), "tensor 'k' is an array, expected an object");
  EXPECT_EQ(said_of_header(R"({"k":"F32"})"), "tensor 'k' is a string, expected an object");
  EXPECT_EQ(said_of_tensor(members("3", "[]", "[]")), "tensor 'k': dtype is 3, expected a string");
  EXPECT_EQ(said_of_tensor(members("[]", "[]", "[]")), "tensor 'k': dtype is an array, expected a string");
  EXPECT_EQ(said_of_tensor(members("\"F32\"", "true", "[]")), "tensor 'k': shape is true, expected an array");
  EXPECT_EQ(said_of_tensor(members("\"F32\"", "{}", "[]")), "tensor 'k': shape is an object, expected an array");
  EXPECT_EQ(said_of_tensor(members("\"F32\"", "[]", "\"\"")),
            "tensor 'k': data_offsets is a string, expected an array");
}

TEST(SafetensorsMalformed, Members) {
  EXPECT_EQ(said_of_tensor(""), "tensor 'k': dtype is missing");
  EXPECT_EQ(said_of_tensor("\"dtype\":\"F32\""), "tensor 'k': shape is missing");
  EXPECT_EQ(said_of_tensor("\"dtype\":\"F32\",\"shape\":[]"), "tensor 'k': data_offsets is missing");
  EXPECT_EQ(said_of_header("{\"j\":{" + members("\"F32\"", "[12]", "[0,48]") + "},\"k\":{}}", 48),
            "tensor 'k': dtype is missing")
      << "one tensor has what another lacks";
  EXPECT_EQ(said_of_tensor(members("\"F32\"", "[12]", "[48]")), "tensor 'k': data_offsets hold 1 numbers, expected 2");
  EXPECT_EQ(said_of_tensor(members("\"F32\"", "[12]", "[0,48,0]")),
            "tensor 'k': data_offsets hold 3 numbers, expected 2");
}

TEST(SafetensorsMalformed, Numbers) {
  for (const std::string bad : {"-1", "-0", "1.0", "12.5", "1e1", "9223372036854775808", "18446744073709551616",
                                "-9223372036854775809", "null", "true"}) {
    SCOPED_TRACE(bad);
    EXPECT_THAT(said_of_tensor(members("\"F32\"", "[1," + bad + "]", "[0,48]")),
                StartsWith("tensor 'k': shape holds " + bad + ", expected whole numbers from 0 to 92233720368"));
    EXPECT_THAT(said_of_tensor(members("\"F32\"", "[12]", "[0," + bad + "]")),
                StartsWith("tensor 'k': data_offsets holds " + bad + ", expected whole numbers from 0 to 92233720368"));
  }
  EXPECT_THAT(said_of_tensor(members("\"F32\"", "[[12]]", "[0,48]")), StartsWith("tensor 'k': shape holds an array"));
  EXPECT_THAT(said_of_tensor(members("\"F32\"", "[12]", "[0,\"48\"]")), HasSubstr("data_offsets holds a string"));
}

TEST(SafetensorsMalformed, Shapes) {
  EXPECT_EQ(said_of_tensor(members("\"F32\"", "[3,4]", "[0,40]")),
            "tensor 'k': data_offsets [0, 40] hold 40 bytes, expected 48 for float32 [3, 4]");
  EXPECT_EQ(said_of_tensor(members("\"F64\"", "[3,4]", "[0,48]")),
            "tensor 'k': data_offsets [0, 48] hold 48 bytes, expected 96 for float64 [3, 4]");
  EXPECT_EQ(said_of_tensor(members("\"F32\"", "[4294967296,4294967296]", "[0,0]")),
            "tensor 'k': shape has more elements than 63 bits can count");
  EXPECT_EQ(said_of_tensor(members("\"F32\"", "[4294967296,1073741824]", "[0,0]")),
            "tensor 'k': float32 [4294967296, 1073741824] has more bytes than 63 bits can count");
  EXPECT_EQ(said_of_header("{\"k\":{" + members("\"F32\"", "[4294967296,4294967296,0]", "[0,0]") + "}}"), "no error");
  EXPECT_EQ(said_of_tensor(members("\"F32\"", "[1,1,1,1,1,1,1,1,12]", "[0,48]")),
            "tensor 'k' has 9 axes, expected at most 8");
  EXPECT_EQ(said_of_tensor(members("\"F32\"", "[1,1,1,1,1,1,1,1,11]", "[0,48]")),
            "tensor 'k': data_offsets [0, 48] hold 48 bytes, expected 44 for float32 of 9 axes");
}

TEST(SafetensorsMalformed, Offsets) {
  const auto two = [](std::string_view a, std::string_view b) {
    return "{\"a\":{" + members("\"U8\"", "[4]", a) + "},\"b\":{" + members("\"U8\"", "[4]", b) + "}}";
  };
  EXPECT_EQ(said_of_header(two("[0,4]", "[4,8]"), 8), "no error");
  EXPECT_EQ(said_of_header(two("[4,8]", "[0,4]"), 8), "no error");
  EXPECT_EQ(said_of_header(two("[0,4]", "[3,7]"), 8),
            "tensor 'b': data_offsets [3, 7] overlap what lies before: expected to begin at 4");
  EXPECT_EQ(said_of_header(two("[0,4]", "[0,4]"), 4),
            "tensor 'b': data_offsets [0, 4] overlap what lies before: expected to begin at 4");
  EXPECT_EQ(said_of_header(two("[5,9]", "[0,4]"), 9),
            "tensor 'a': data_offsets [5, 9] leave a hole: expected to begin at 4");
  EXPECT_EQ(said_of_header(two("[1,5]", "[5,9]"), 9),
            "tensor 'a': data_offsets [1, 5] leave a hole: expected to begin at 0");
  EXPECT_EQ(said_of_header(two("[0,4]", "[8,4]"), 8), "tensor 'b': data_offsets [8, 4] end before they begin");
  EXPECT_EQ(said_of_header(two("[0,4]", "[4,8]"), 7), "7 bytes of data, expected the 8 that the tensors take");
  EXPECT_EQ(said_of_header(two("[0,4]", "[4,8]"), 9), "9 bytes of data, expected the 8 that the tensors take");
  EXPECT_EQ(said_of_header("{}", 1), "1 bytes of data, expected the 0 that the tensors take");
  EXPECT_THAT(said_of_header("{\"k\":{" + members("\"U4\"", "[1]", "[0,9223372036854775807]") + "}}", 1),
              HasSubstr("1 bytes of data"));
}

TEST(SafetensorsMalformed, Names) {
  EXPECT_EQ(said_of_header("{\"a\\u0000b\":{" + members("\"U8\"", "[0]", "[0,0]") + "}}"),
            "tensor 'a\\u0000b': a zero byte in a name");
  EXPECT_EQ(said_of_header("{\"\":1}"), "tensor '' is 1, expected an object");
  EXPECT_EQ(said_of_header("{\"a\\nb\\u001b\":1}"), "tensor 'a\\nb\\u001b' is 1, expected an object");
  std::string turtles;
  for (int i = 0; i < 100'000; ++i) turtles += "\xf0\x9f\x90\xa2";
  EXPECT_EQ(said_of_header("{\"x" + turtles + "\":1}"),
            "tensor 'x" + turtles.substr(0, 96) + "...' is 1, expected an object");
}

TEST(SafetensorsMalformed, DtypesThatNobodyKnows) {
  const TemporaryFolder folder;
  write_bytes(folder.path() / "f",
              safetensors_bytes("{\"k\":{" + members("\"U32\"", "[1]", "[0,4]") + "}}", std::string(4, '\0')));
  const SafetensorsFile file(folder.path() / "f");
  for (const bool reads : {false, true}) {
    try {
      reads ? void(file.read("k")) : void(file.dtype("k"));
      FAIL();
    } catch (const ValueError& error) {
      EXPECT_THAT(error.what(), HasSubstr("f: tensor 'k': dtype 'U32', expected F64, F32,"));
    }
  }
}

TEST(SafetensorsMalformed, BoolsOtherThanNoughtAndOne) {
  EXPECT_EQ(
      said_of(safetensors_bytes("{\"k\":{" + members("\"BOOL\"", "[3]", "[0,3]") + "}}", std::string("\0\1\2", 3))),
      "tensor 'k': element 2 is 2, expected 0 or 1 for bool");
}

TEST(SafetensorsMalformed, NamesThatAreNotThere) {
  const TemporaryFolder folder;
  write_bytes(folder.path() / "f", safetensors_bytes("{}", ""));
  const SafetensorsFile file(folder.path() / "f");
  EXPECT_THROW(file.dtype("k"), ValueError);
  EXPECT_THROW(file.shape("k"), ValueError);
  try {
    file.read("k");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("f: no tensor 'k' among its 0"));
  }
}

TEST(SafetensorsMalformed, AFileThatBecameShorter) {
  const TemporaryFolder folder;
  const std::string bytes = safetensors_bytes("{\"k\":{" + members("\"U8\"", "[4]", "[0,4]") + "}}", "abcd");
  write_bytes(folder.path() / "f", bytes);
  const SafetensorsFile file(folder.path() / "f");
  EXPECT_EQ(file.read("k").as<char>()[3], 'd');
  fs::resize_file(folder.path() / "f", bytes.size() - 1);
  try {
    file.read("k");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tensor 'k': 3 bytes, expected 4: the file became shorter"));
  }
}

/// One to four bytes or stretches flipped, put in or taken out.
std::string changed(std::string bytes, support::Random& random) {
  constexpr std::string_view kTelling = "{}[],:\"\\0123456789-.eE \x00\x01\x7f\x80\xc3\xff";
  for (std::int64_t i = random.integer(1, 4); i > 0 && !bytes.empty(); --i) {
    const auto at = static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(bytes.size()) - 1));
    const char byte = kTelling[static_cast<std::size_t>(random.bits() % kTelling.size())];
    switch (random.integer(0, 4)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ 1 << random.integer(0, 7));
        break;
      case 1:
        bytes[at] = byte;
        break;
      case 2:
        bytes.insert(at, 1, byte);
        break;
      case 3:
        bytes.erase(at, static_cast<std::size_t>(random.integer(1, 9)));
        break;
      default:
        bytes.insert(at, bytes.substr(at, static_cast<std::size_t>(random.integer(1, 40))));
        break;
    }
  }
  return bytes;
}

TEST(SafetensorsMalformed, ChangedAtRandomItIsReadOrRefused) {
  constexpr std::uint64_t kSeed = 20;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const std::string header = R"({"__metadata__":{"format":"pt","note":"\u00e9 \"x\""},)"
                             R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                             R"("b":{"dtype":"BOOL","shape":[8],"data_offsets":[24,32],"more":[{"x":null},1.5]}})";
  const std::string bytes = safetensors_bytes(header, std::string(32, '\1'));
  ASSERT_EQ(said_of(bytes), "no error");
  support::Random random(kSeed);
  const TemporaryFolder folder;
  int num_read = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string variant = changed(bytes, random);
    // Half of them with the length that belongs to the header, or few would get beyond it.
    if (random.chance(0.5) && variant.size() > 40) variant.replace(0, 8, little_endian(variant.size() - 40));
    write_bytes(folder.path() / "f", variant);
    try {
      const SafetensorsFile file(folder.path() / "f");
      for (const std::string& name : file.names()) file.read(name);
      ++num_read;
    } catch (const ValueError&) {
    }
  }
  EXPECT_GT(num_read, 40) << "changes that harm nothing: bytes of the data, of names, of the metadata";
  EXPECT_LT(num_read, 2000);
}

}  // namespace
}  // namespace qkv
