//! A device that hangs: the engine breaks down in time, and nothing waits for the device.

use std::time::{Duration, Instant};

use trail_cuda_emulator::Failing;
use trail_runtime::engine::{
    CudaSettings, Engine, EngineConfig, PolicyKind, Request, SteppedEngine,
};

use trail_scheduler::{Preemption, SchedulerConfig};

use super::subject::{CUDA, Subject, build};

/// Longer than any step takes on a busy host's emulator.
const TIMEOUT: Duration = Duration::from_secs(3);
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
        assert!(fault.contains("the GPU was not done in 3 s"), "{fault}");
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
        assert!(why.contains("the GPU was not done in 3 s"), "{why}");
        assert!(begin.elapsed() < TIMEOUT + SLACK, "{why}");
        emulator.forget_context();
    }
}

/// The host pool's copies are timed at start, after those of the weights.
#[test]
fn cuda_a_copy_that_never_ends_at_start_is_an_error() {
    let subject = Subject::small();
    let session = trail_cuda_emulator::session();
    let Some(emulator) = session.emulator() else { return };
    let config = || config(&subject, true);
    let device_timeout = Duration::from_millis(500);
    let cuda = CudaSettings { device_timeout, ..config().cuda };
    let scheduler = SchedulerConfig { preemption: Preemption::Swap, ..SchedulerConfig::default() };
    let is_timed = (1..100).any(|nth| {
        emulator.fail(Failing::HangCopy, nth, 0);
        let built = build(&subject.model, EngineConfig { cuda, scheduler, ..config() });
        let why = built.err().unwrap_or_else(|| panic!("copy {nth} is not one of the start"));
        assert!(why.contains("the GPU was not done in"), "copy {nth}: {why}");
        emulator.forget_context();
        why.contains("timing copies")
    });
    assert!(is_timed, "no copy of the start was timed");
}

/// A step is in flight, and no thread has waited for it yet.
#[test]
fn cuda_an_engine_is_dropped_in_time_while_its_device_hangs() {
    let subject = Subject::small();
    let session = trail_cuda_emulator::session();
    let Some(emulator) = session.emulator() else { return };
    let mut engine = SteppedEngine::new(subject.model.clone(), config(&subject, true)).unwrap();
    let _handle = engine.submit(Request::new(vec![1, 2, 3], 20)).expect("a request");
    emulator.hang(1);
    engine.step().expect("a step that is launched");
    let begin = Instant::now();
    drop(engine);
    assert!(begin.elapsed() < TIMEOUT + SLACK, "the drop waited for the device");
    emulator.forget_context();
}
