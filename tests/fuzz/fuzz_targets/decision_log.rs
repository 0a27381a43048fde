//! Any bytes as a decision log: refused in one line that has its number, or read back from its own
//! lines; a replay repeats its decisions, or names the line that differs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trail_scheduler::DecisionLog;
use trail_simulator::replay::Replay;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let lines = text.lines().count();
    let log = match DecisionLog::parse(text) {
        Ok(log) => log,
        Err(error) => {
            assert_eq!(error.to_string().lines().count(), 1);
            assert!(1 <= error.line && error.line <= lines.max(1));
            return;
        }
    };
    assert_eq!(DecisionLog::parse(&log.text()).as_ref(), Ok(&log));
    assert_eq!(DecisionLog::parse_cut(text), Ok((log.clone(), None)));
    // Tables take memory by the sizes in the header.
    let config = &log.header.config;
    let sizes = [config.max_requests, config.max_context, config.num_blocks, config.host_blocks];
    if sizes.iter().any(|&size| size > 4096) {
        return;
    }
    if let Err(error) = Replay::run(&log) {
        assert_eq!(error.to_string().lines().count(), 1);
    }
});
