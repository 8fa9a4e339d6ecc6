// Goldens are numpy's archives.
#pragma once

#include "tutti/io/numpy.h"

namespace tutti::test {
using io::Npz;
}
