// Where the processes of a job meet that is on one host, and whose starter says no more than the job's name.
#pragma once

#include <sys/types.h>

#include <string>

namespace tutti::comm {

/// "pid start", which no other process of this host ever has; empty: there is no such process, or it has ended and
/// only waits for its parent to ask.
std::string process_identity(pid_t pid);

/// The path of the file in which ranks of this job meet; this process is noted among those who came, in a list beside
/// it. What an earlier job of the same name left behind when it was killed is removed: no process of its list lives.
std::string join_meeting_file(const std::string& job);
/// All have come, so that nobody asks any more who has.
void forget_meeting(const std::string& path);
/// This process has given up: it is taken from the list, and the last of them takes the list with it.
void leave_meeting(const std::string& path);

}  // namespace tutti::comm
