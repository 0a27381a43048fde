//! Failures are reported clearly: in turn each allocation, launch and copy, and the device itself.
//! `TRAIL_SWEEP=all` tries every one; a sample otherwise.

use std::time::Instant;

use cudarc::driver::sys::CUresult;
use trail_cuda_emulator::{Emulator, Failing, Session};
use trail_runtime::engine::{EngineConfig, PolicyKind};
use trail_scheduler::{Preemption, SchedulerConfig};

use super::subject::{CUDA, LIMIT, Subject, build};

/// Of so many failures in a row one is tried.
fn stride(sample: u64) -> u64 {
    match std::env::var("TRAIL_SWEEP") {
        Ok(all) if all == "all" => 1,
        _ => sample,
    }
}

/// Failures are planned on the emulator alone.
fn emulator(session: &Session) -> Option<Emulator> {
    session.emulator()
}

fn config(subject: &Subject) -> EngineConfig {
    let scheduler = SchedulerConfig { preemption: Preemption::Swap, ..SchedulerConfig::default() };
    let config = subject.config(CUDA, PolicyKind::trail(1.0));
    EngineConfig { scheduler, kv_blocks: Some(8), ..config }
}

/// Plans the failure of the `nth` call of a kind, for `nth` = 1, 1 + stride, ... until one is
/// planned beyond the last call: then all goes well. At least three did not.
fn sweep(kind: Failing, code: CUresult, sample: u64) {
    let mut broken = 0;
    let subject = Subject::small();
    for nth in (1..).step_by(stride(sample) as usize) {
        // Leaks are found when the session ends.
        let session = trail_cuda_emulator::session();
        let Some(emulator) = emulator(&session) else { return };
        emulator.fail(kind, nth, code as u32);
        let what = format!("failure {nth} with {code:?}");
        match build(&subject.model, config(&subject)) {
            Err(_) => broken += 1,
            Ok(engine) => {
                let (_, failed) = subject.survive(&engine, &what);
                drop(engine);
                broken += usize::from(failed > 0);
                if failed == 0 {
                    assert_eq!(emulator.live_allocations(), 0, "{what}");
                    assert!(broken > 2, "{broken} failures of {kind:?}");
                    return;
                }
            }
        }
        assert_eq!(emulator.live_allocations(), 0, "{what}");
    }
    unreachable!("the numbers do not end");
}

#[test]
fn cuda_out_of_memory_at_every_allocation_in_turn() {
    sweep(Failing::Allocation, CUresult::CUDA_ERROR_OUT_OF_MEMORY, 5);
}

#[test]
fn cuda_a_failed_launch_at_every_launch_in_turn() {
    sweep(Failing::Launch, CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 251);
}

#[test]
fn cuda_a_failed_copy_at_every_copy_in_turn() {
    sweep(Failing::Copy, CUresult::CUDA_ERROR_UNKNOWN, 17);
}

#[test]
fn cuda_the_device_is_lost_under_the_requests() {
    let subject = Subject::small();
    for tokens in [0, 1, 7, 40] {
        let session = trail_cuda_emulator::session();
        let Some(emulator) = emulator(&session) else { return };
        let engine = build(&subject.model, config(&subject)).expect("an engine");
        let counted = || engine.stats().generated_tokens >= tokens;
        let (_, failed) = std::thread::scope(|scope| {
            scope.spawn(|| {
                let begin = Instant::now();
                while !counted() {
                    assert!(begin.elapsed() < LIMIT, "no {tokens} tokens");
                    std::thread::yield_now();
                }
                emulator.lose_device(CUresult::CUDA_ERROR_UNKNOWN as u32);
            });
            subject.survive(&engine, &format!("lost after {tokens} tokens"))
        });
        assert!(failed > 0, "lost after {tokens} tokens");
        drop(engine);
        emulator.lose_device(0);
    }
}
