// Terminals: the one that this program prints on, pseudoterminals for those whose output it prints, and lines with the
// control sequences that such programs write.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tools/tutti/signals.h"

namespace tutti::tool {

struct WindowSize {
  int columns = 80, rows = 24;
  bool operator==(const WindowSize&) const = default;
};
/// Of the terminal behind a descriptor.
WindowSize window_size(int fd);

/// Whether the descriptor is a terminal on which a line can be drawn again, and which no other `tutti run` reads.
bool can_redraw(int fd);
/// Whether both are the same terminal.
bool same_terminal(int a, int b);
/// Whether a shell has put this program into the background of its terminal, where it should not draw.
bool in_background(int terminal);
/// Set in a program whose output goes to a pseudoterminal that a `tutti run` reads, line by line.
constexpr const char* kReadByLines = "TUTTI_READ_BY_LINES";

/// A pseudoterminal that passes bytes on as they are: the end to read from, and the one that a program writes to.
/// Nothing where the system gives none (a container without /dev/pts, or too many).
std::optional<std::pair<Descriptor, Descriptor>> make_pseudoterminal(const WindowSize& size);
void resize_pseudoterminal(int fd, const WindowSize& size);

/// A line without control sequences and characters, as a log has it.
std::string plain_text(std::string_view line);
/// A line with no control sequences but those that color it.
std::string colored_text(std::string_view line);
/// The beginning of a colored text that fits into so many columns.
std::string cut_to_columns(std::string_view colored, int columns);
/// Columns of a text without control sequences; wide characters count as one.
int columns_of(std::string_view text);

}  // namespace tutti::tool
