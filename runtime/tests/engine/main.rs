//! The engine on the CPU: requests, the decision log, the bundled model's predictions.

mod confusion;
mod decision_log;
mod prompt_logprobs;
mod requests;
