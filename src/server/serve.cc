#include "server/server.h"

namespace herring::server {

void Server::serve(const control::ServerSet&) {}

}  // namespace herring::server
