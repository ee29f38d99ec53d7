#include "command_line.h"

int main(int argc, char** argv) { return qkv::cli::run(argc, argv); }
