//! A device that hangs: the engine breaks down in time, and nothing waits for the device.

use std::time::{Duration, Instant};

use trail_runtime::engine::{CudaSettings, Engine, EngineConfig, PolicyKind};

use super::subject::{CUDA, Subject, build};

/// Longer than any step takes on a busy host's emulator.
const TIMEOUT: Duration = Duration::from_secs(5);
/// And the longest that anything may take beside it.
const SLACK: Duration = Duration::from_secs(10);

fn config(subject: &Subject, graphs: bool) -> EngineConfig {
    let settings = subject.config(CUDA, PolicyKind::trail(1.0));
    let cuda = CudaSettings { device_timeout: TIMEOUT, graphs, ..settings.cuda };
    EngineConfig { cuda, ..settings }
}

/// Drops `engine`, whose device hangs.
fn drop_in_time(engine: Engine) {
    let begin = Instant::now();
    drop(engine);
    assert!(begin.elapsed() < SLACK, "the drop waited for the device");
}

#[test]
fn cuda_a_kernel_that_never_ends_breaks_the_engine_down() {
    let subject = Subject::small();
    for (nth, graphs) in [(1, true), (90, true), (90, false)] {
        let session = trail_cuda_emulator::session();
        let Some(emulator) = session.emulator() else { return };
        let engine = build(&subject.model, config(&subject, graphs)).expect("an engine");
        emulator.hang(nth);
        let (_, failed) = subject.survive(&engine, &format!("kernel {nth} never ends"));
        assert!(failed > 0, "kernel {nth}");
        let fault = engine.fault().expect("a fault").to_string();
        assert!(fault.contains("the GPU was not done in 5 s"), "{fault}");
        drop_in_time(engine);
        emulator.forget_context();
    }
}

#[test]
fn cuda_a_kernel_that_never_ends_at_start_is_an_error() {
    let subject = Subject::small();
    for nth in [1, 5] {
        let session = trail_cuda_emulator::session();
        let Some(emulator) = session.emulator() else { return };
        emulator.hang(nth);
        let begin = Instant::now();
        let why = build(&subject.model, config(&subject, true)).err().expect("an error");
        assert!(why.contains("the GPU was not done in 5 s"), "{why}");
        assert!(begin.elapsed() < TIMEOUT + SLACK, "{why}");
        emulator.forget_context();
    }
}
