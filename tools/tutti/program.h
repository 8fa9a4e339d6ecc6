// Programs by their names, as a shell finds them, and why one cannot be started.
#pragma once

#include <string>

namespace tutti::tool {

/// The file that a command's first word names: itself where it has a slash, or the first on PATH that can be started.
/// Where there is none, the word.
std::string find_program(const std::string& name, const std::string& path);

/// What execve() said of that file, as a sentence for who typed the word; and what to do.
std::string why_not_started(const std::string& name, const std::string& file, int error);

/// As shells have it: 127 for a program that is not there, 126 for one that cannot be started.
int code_of_not_started(const std::string& file, int error);

}  // namespace tutti::tool
