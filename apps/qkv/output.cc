#include "output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace qkv::cli {
namespace {

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

bool terminal_is_dumb() {
  const char* terminal = std::getenv("TERM");
  return terminal == nullptr || std::strcmp(terminal, "dumb") == 0;
}

const char* escape_of(Color color) {
  switch (color) {
    case Color::kGreen:
      return "\x1b[32m";
    case Color::kRed:
      return "\x1b[1;31m";
    case Color::kDim:
      return "\x1b[2m";
  }
  return "";
}

}  // namespace

OutputError::OutputError(int error_number)
    : std::runtime_error(std::string("cannot write the output: ") + std::strerror(error_number)),
      is_broken_pipe_(error_number == EPIPE) {}

Output::Output(std::FILE* file)
    : file_(file),
      is_terminal_(isatty(fileno(file)) != 0),
      has_color_(is_terminal_ && !is_set("NO_COLOR") && !terminal_is_dumb()) {}

std::string Output::paint(Color color, std::string_view text) const {
  if (!has_color_) return std::string(text);
  return escape_of(color) + std::string(text) + "\x1b[0m";
}

void Output::write(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0) {
    throw OutputError(errno);
  }
}

}  // namespace qkv::cli
