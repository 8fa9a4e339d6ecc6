#include "tools/tutti/program.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace tutti::tool {
namespace {

namespace fs = std::filesystem;

bool is_there(const std::string& file) {
  struct stat s{};
  return ::stat(file.c_str(), &s) == 0;
}
bool is_folder(const std::string& file) {
  struct stat s{};
  return ::stat(file.c_str(), &s) == 0 && S_ISDIR(s.st_mode);
}
bool is_startable(const std::string& file) { return !is_folder(file) && ::access(file.c_str(), X_OK) == 0; }

// "python3" from "#!/usr/bin/python3 -u"; "" where there is no such line.
std::string interpreter_of(const std::string& file) {
  std::string line;
  std::ifstream stream(file, std::ios::binary);
  if (!std::getline(stream, line) || !line.starts_with("#!")) return "";
  line = line.substr(std::min(line.find_first_not_of(" \t", 2), line.size()));
  return line.substr(0, line.find_first_of(" \t\r"));
}

std::string machine() {
  utsname names{};
  return ::uname(&names) == 0 ? names.machine : "this machine";
}

}  // namespace

std::string find_program(const std::string& name, const std::string& path) {
  if (name.empty() || name.find('/') != std::string::npos) return name;
  std::string there;  // but not startable
  for (size_t at = 0; at <= path.size();) {
    size_t end = std::min(path.find(':', at), path.size());
    std::string folder = path.substr(at, end - at), file = (folder.empty() ? "." : folder) + "/" + name;
    if (is_startable(file)) return file;
    if (there.empty() && is_there(file) && !is_folder(file)) there = file;
    at = end + 1;
  }
  return there.empty() ? name : there;
}

std::string why_not_started(const std::string& name, const std::string& file, int error) {
  auto says = [&](const std::string& why) { return fmt::format("{} cannot be started: {}", name, why); };
  if (name.empty()) return "the name of the program is empty: name the program to run";
  if (file.find('/') == std::string::npos) {  // not found on PATH
    std::string here = "./" + file;
    if (is_startable(here)) return says(fmt::format("no folder of PATH has it. Did you mean {}?", here));
    if (is_there(here) && !is_folder(here))
      return says(
          fmt::format("no folder of PATH has it, and {} is not executable. Name its interpreter (python3 {}), "
                      "or make it executable (chmod +x {})",
                      here, file, file));
    if (is_folder(here)) return says(fmt::format("it is a folder here. Name a program in it ({}/program)", file));
    return says("no folder of PATH has it. Name a program of PATH, or a file (./program)");
  }
  if (is_folder(file)) return says("it is a folder. Name a program in it");
  if (error == ENOENT && is_there(file)) {
    std::string interpreter = interpreter_of(file);
    if (!interpreter.empty())
      return says(
          fmt::format("its first line names the interpreter {}, which is not there. Correct that line, or "
                      "install the interpreter",
                      interpreter));
    return says("its dynamic loader is not there. Was it built for another system?");
  }
  if (error == ENOENT || error == ENOTDIR)
    return says(fmt::format("there is no such file{}. Build it, or correct the path",
                            fs::path(file).is_absolute() ? "" : " in " + fs::current_path().string()));
  if (error == EACCES && ::access(file.c_str(), X_OK) != 0)
    return says(fmt::format("it is not executable. Make it so (chmod +x {}), or name its interpreter (python3 {})",
                            file, file));
  if (error == ENOEXEC)
    return says(
        fmt::format("it is neither a program for {} nor a script whose first line names its interpreter "
                    "(#!/bin/sh). Add that line, or build the program on this machine",
                    machine()));
  return says(std::strerror(error));
}

int code_of_not_started(const std::string& file, int error) {
  bool found = file.find('/') != std::string::npos && is_there(file);
  return (error == ENOENT || error == ENOTDIR) && !found ? 127 : 126;
}

}  // namespace tutti::tool
