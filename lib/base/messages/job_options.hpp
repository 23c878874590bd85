#pragma once
// How a job of any program runs and reports.

namespace fsdp {

struct JobOptions {
  double init_timeout_seconds = 300;        ///< for all ranks to arrive at the start
  double collective_timeout_seconds = 600;  ///< before a stuck collective ends the job
  bool json = false;                        ///< one JSON object with the result on stdout
  bool quiet = false;                       ///< warnings and errors only
};

}  // namespace fsdp
