#pragma once

namespace fsdp {

/// Runs `fsdp-download tokens`, which converts texts to token files. argv[0] is "tokens". \return an exit code
int tokens_main(int argc, char** argv);

}  // namespace fsdp
