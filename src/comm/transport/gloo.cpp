// The wire by Gloo.
#include "base/check.h"
#include "comm/transport/wire.h"

#ifndef TUTTI_HAVE_GLOO

namespace tutti::comm {
std::unique_ptr<Wire> make_gloo_wire(int, int, const StorePtr&, const std::string&) {
  fail<DeviceError>("world",
                    "this build of Tutti has no Gloo: build it where Gloo is (on Debian: libgloo-dev), or use "
                    "TUTTI_TRANSPORT=ucx");
}
}  // namespace tutti::comm

#endif
